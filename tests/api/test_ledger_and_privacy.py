"""What a fit spends, says and leaves behind."""

import dataclasses
import math
import pickle
import struct
import warnings
from collections import Counter

import numpy as np
import pytest
import scipy.sparse
from sklearn.exceptions import NotFittedError

from ratewise import (
    Budget,
    BudgetExceeded,
    DualControl,
    Ledger,
    Numeric,
    PrivacyLeakWarning,
    RateConstrainedClassifier,
    RatewiseWarning,
    SmallGroupWarning,
    below,
    demographic_parity,
    equalized_odds,
    group,
    rate,
)
from ratewise.accounting import GaussianEvent, TrainingEvent, UnprotectedEvent, epsilon
from ratewise.enforceability import doubts
from ratewise.linear import LinearEngine
from ratewise.multipliers import Multipliers
from ratewise.randomness import RandomStreams

N = 613  # a prime that is no number of steps, cells or parameters
RNG = np.random.default_rng(2)
SEX = RNG.choice(["F", "M"], N)
X = RNG.normal(size=(N, 3)) + (SEX == "M")[:, None]
Y = (X[:, 0] + RNG.normal(size=N) > 0.5).astype(int)
GROUPS = {"sex": SEX}
PARITY = demographic_parity("sex", max_gap=0.1)
DELTA = 1e-5

small = pytest.mark.filterwarnings("ignore::ratewise.SmallGroupWarning")
pytestmark = small


def classifier(constraints=PARITY, **changes):
    public = {"classes": (0, 1), "group_values": {"sex": ("F", "M")}}
    return RateConstrainedClassifier(constraints, **{**public, "random_state": 0, "steps": 30, **changes})


def fit(constraints=PARITY, **changes):
    return classifier(constraints, **changes).fit(X, Y, sensitive_features=GROUPS)


def steps_in(ledger):
    return sum(event.steps for event in ledger.events() if isinstance(event, TrainingEvent))


class TestSpent:
    @pytest.mark.parametrize("asked", [0.05, 1.0, 8.0])
    @pytest.mark.parametrize(
        "changes",
        [
            {},
            {"constraints": None},
            {"histogram": "laplace"},
            {"neighbours": "replace_one"},
            {"neighbours": "zero_out", "sampling_rate": 0.1},
            {"constraints": equalized_odds("sex", max_gap=0.1), "histogram_share": 0.4, "steps": 1},
            {"sampling_rate": 1.0, "rates": "soft"},
        ],
        ids=str,
    )
    @pytest.mark.filterwarnings("ignore:.*rows are too few:ratewise.RatewiseWarning")
    def test_all_of_the_budget_and_no_more(self, asked, changes):
        model = fit(**{"epsilon": asked, **changes})
        assert 0.99 * asked <= model.privacy_.epsilon <= asked
        assert model.privacy_.delta == DELTA
        assert model.privacy_.neighbours == model.neighbours
        assert model.ledger_.cap == Budget(asked, DELTA)

    def test_said_is_what_the_accountant_says_of_what_ran(self):
        model = fit(standardise=True)  # so few rows would be left as they are
        ran = [event for event in model.plan_.events if isinstance(event, GaussianEvent)]
        said = [event for event in model.privacy_.events if isinstance(event, GaussianEvent)]
        assert sum((Counter({event.noise: event.count}) for event in said), Counter()) == Counter(
            event.noise for event in ran
        )
        assert len(ran) == 5
        assert dataclasses.replace(model.plan_.step_event, steps=30) in model.privacy_.events
        assert model.privacy_.epsilon == pytest.approx(epsilon(model.plan_.events, DELTA), rel=1e-9)
        assert model.n_iter_ == 30

    def test_without_privacy_epsilon_is_infinite(self):
        model = fit(epsilon=None)
        assert model.privacy_.epsilon == math.inf
        assert not model.privacy_.private
        assert isinstance(model.privacy_.events[0], UnprotectedEvent)
        assert "NO PRIVACY GUARANTEE" in str(model.privacy_)
        assert model.ledger_.total(DELTA) == math.inf

    def test_statement_names_unit_and_public_facts(self):
        kinds = np.arange(X.shape[1]) % 2
        model = fit(unit="one household", feature_bounds=(-3, 3), feature_kinds=kinds, data_name="survey 7")
        words = " ".join(str(model.privacy_).split())
        public = ("the number of rows, 613", "the classes", "column 'sex'", "the bounds", "the kinds")
        for part in ("one household", *public):
            assert part in words
        assert model.ledger_.data_uses == ("survey 7",)

    def test_delta_between_one_row_and_the_customary_one_is_warned_of(self):
        n = 110_000
        x, y = np.tile(X[:, :1], (n // N + 1, 1))[:n], np.resize(Y, n)
        model = RateConstrainedClassifier(classes=(0, 1), steps=2)
        with pytest.warns(RatewiseWarning, match="delta is 1e-05, above 1/n = 9.09e-06") as caught:
            model.fit(x, y)
        assert len(caught) == 1
        assert caught[0].filename == __file__
        model.set_params(delta=9e-6).fit(x, y)  # says nothing


class TestLeaks:
    def warned(self, constraints=PARITY, groups=GROUPS, **changes):
        model = classifier(constraints, **changes)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.fit(X, Y, sensitive_features=groups)
        return model, [w for w in caught if issubclass(w.category, PrivacyLeakWarning)]

    @pytest.mark.parametrize(
        ("changes", "leaks"),
        [
            ({}, []),
            ({"classes": None}, ["the classes"]),
            ({"group_values": None}, ["the values of column 'sex'"]),
            ({"classes": None, "group_values": None}, ["the classes", "the values of column 'sex'"]),
            ({"constraints": None, "group_values": None}, []),
            ({"constraints": None, "classes": None}, ["the classes"]),
            ({"constraints": rate(1) <= 0.4, "group_values": None}, []),
        ],
        ids=str,
    )
    def test_warned_of_and_stated_exactly_where_data_were_read(self, changes, leaks):
        model, caught = self.warned(**changes)
        assert list(model.privacy_.leaks) == leaks
        assert len(caught) == (1 if leaks else 0)
        assert model.privacy_.private == (not leaks)
        assert ("NOT COVERED" in str(model.privacy_)) == bool(leaks)
        for leak in leaks:
            assert leak in str(caught[0].message)
            assert leak in str(model.privacy_)

    def test_warning_points_at_the_call(self):
        _, caught = self.warned(classes=None)
        assert caught[0].filename == __file__

    def test_numeric_columns(self):
        ages = {"age": X[:, 1] * 10 + 40}
        limit = rate(1, where=group(age=below(40))) <= 0.9
        for declared in (None, {"age": Numeric()}):
            model, caught = self.warned(limit, ages, group_values=declared)
            assert not caught
            assert model.privacy_.leaks == ()

    def test_nothing_leaks_where_nothing_is_promised(self):
        model, caught = self.warned(classes=None, group_values=None, epsilon=None)
        assert not caught
        assert model.privacy_.leaks == ()

    def test_as_an_error_it_comes_before_anything_is_spent(self):
        ledger = Ledger()
        with warnings.catch_warnings():
            warnings.simplefilter("error", PrivacyLeakWarning)
            with pytest.raises(PrivacyLeakWarning, match="with classes="):
                fit(classes=None, ledger=ledger)
        assert ledger.records == ()


class TestOneLoop:
    """With and without constraints, with and without privacy: the same loop."""

    def test_private_and_constrained(self):
        model = fit()
        event = model.plan_.events[-1]
        assert event in model.privacy_.events
        assert (event.histogram, event.histogram_noise) == ("gaussian", model.plan_.histogram_noise)
        assert set(model.history_) == {"step", "gradient_norm", "histogram", "values", "multipliers"}
        assert model.history_["histogram"].shape == (30, 2, 2)
        assert model.history_["values"].shape == model.history_["multipliers"].shape == (30, 2)
        assert model.multipliers_.shape == (2,)

    @pytest.mark.parametrize("empty", [None, [], ()])
    def test_without_constraints_it_is_dp_sgd(self, empty):
        model = fit(empty)
        event = model.plan_.events[-1]
        assert event in model.privacy_.events
        assert (event.histogram, event.histogram_noise) == (None, None)
        assert event.gradient_noise == model.plan_.gradient_noise
        assert set(model.history_) == {"step", "gradient_norm"}
        assert model.constraints_ is None
        assert model.multipliers_.shape == (0,)
        assert model.doubts_ == ()

    def test_a_histogram_is_paid_for(self):
        assert fit().plan_.gradient_noise > fit(None).plan_.gradient_noise

    def test_without_privacy_it_is_descent_and_ascent_on_exact_values(self):
        model = fit(epsilon=None, sampling_rate=1.0)
        totals = model.history_["histogram"].sum(axis=2)
        np.testing.assert_array_equal(totals, np.tile([(SEX == "F").sum(), (SEX == "M").sum()], (30, 1)))
        np.testing.assert_array_equal(model.history_["histogram"] % 1, 0)

    def test_with_neither_it_is_gradient_descent(self):
        """One step from zero, by hand."""
        model = fit(
            None,
            epsilon=None,
            sampling_rate=1.0,
            steps=1,
            learning_rate=0.5,
            row_norm=None,
            standardise=False,
        )
        expected = 0.5 * X.T @ (Y - 0.5) / N
        np.testing.assert_allclose(model.coef_[0], expected)
        np.testing.assert_allclose(model.intercept_[0], 0.5 * np.mean(Y - 0.5))

    def test_much_budget_comes_near_no_privacy(self):
        """Noise is all that privacy adds, once rows are clipped alike and all of them are read."""
        common = {
            "constraints": None, "sampling_rate": 1.0, "clip": 1.0, "learning_rate": 1.0, "curves": False
        }  # fmt: skip
        exact = fit(epsilon=None, **common)
        near, far = fit(epsilon=1e5, **common), fit(epsilon=0.1, **common)
        assert np.abs(near.coef_ - exact.coef_).max() < 0.01
        assert np.abs(far.coef_ - exact.coef_).max() > 0.05


class TestHistory:
    def test_histograms_are_noisy_by_what_the_plan_says(self):
        """Every row is in every batch, so cell sizes are exact but for the noise."""
        model = fit(sampling_rate=1.0, steps=1500, epsilon=20.0)
        sizes = np.array([(SEX == "F").sum(), (SEX == "M").sum()])
        noise = model.history_["histogram"].sum(axis=2) - sizes  # of two counts each
        noise /= model.plan_.histogram_noise * math.sqrt(2)
        assert abs(noise.mean()) < 4 / math.sqrt(noise.size)
        assert 0.94 < noise.std() < 1.06  # 4.6 standard errors
        assert abs(np.corrcoef(noise.T)[0, 1]) < 0.1
        assert abs(np.corrcoef(noise[1:, 0], noise[:-1, 0])[0, 1]) < 0.1

    @pytest.mark.parametrize("control", [None, DualControl(rate=0.1, interval=7, memory=0.5)])
    def test_all_else_follows_from_released_histograms(self, control, monkeypatch):
        """Multipliers that see nothing but what was released come to the same values and the same push."""
        tables, sums = [], LinearEngine.sums

        def watched(self, rows, theta, table, loss_weight):
            tables.append((table, loss_weight))
            return sums(self, rows, theta, table, loss_weight)

        monkeypatch.setattr(LinearEngine, "sums", watched)
        model = fit(steps=140, dual=control)
        replay = Multipliers(model.constraints_, model.plan_)
        every = model.plan_.dual.interval
        released = model.history_["histogram"]
        for start in range(0, 140, every):
            for table, loss_weight in tables[start : start + every]:
                assert (table is None) == (replay.table is None)
                if table is not None:
                    np.testing.assert_allclose(table, replay.table, atol=1e-12)
                assert loss_weight == pytest.approx(replay.loss_weight)
            replay.update(released[start : start + every])
            last = min(start + every, 140) - 1
            np.testing.assert_allclose(model.history_["values"][last], replay.values, atol=1e-12)
            np.testing.assert_allclose(model.history_["multipliers"][last], replay.multipliers, atol=1e-12)
        np.testing.assert_allclose(model.multipliers_, replay.average)
        assert model.doubts_ == doubts(model.constraints_, replay, model.plan_)
        assert sum(table is not None for table, _ in tables) > 20
        assert replay.faint.any() == (control is None)  # limits that noise hides push without multipliers

    def test_callbacks_see_what_history_keeps(self):
        records = []
        model = fit(callback=records.append, dual=DualControl(interval=4))
        assert [record.step for record in records] == list(range(1, 31)) == model.history_["step"].tolist()
        norms = [record.gradient_norm for record in records]
        np.testing.assert_array_equal(norms, model.history_["gradient_norm"])
        shown = [record.histograms for record in records if record.histograms is not None]
        np.testing.assert_array_equal(np.concatenate(shown), model.history_["histogram"])

    def test_long_runs_keep_every_so_many_steps(self):
        many = {f"g{i}" for i in range(100)}
        groups = RNG.choice(sorted(many), N)
        groups[:100] = sorted(many)
        model = classifier(
            demographic_parity("g", max_gap=0.2), group_values={"g": many}, steps=12_000, sampling_rate=0.01
        )
        model.fit(X[:, :1], Y, sensitive_features={"g": groups})
        stored = sum(array.size for array in model.history_.values())
        assert stored < 5_000_000
        assert len(model.history_["step"]) < 12_000
        assert model.n_iter_ == steps_in(model.ledger_) == 12_000


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
    pickled = pickle.dumps(model)
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
    return "an engine" if isinstance(part, LinearEngine) else None


class TestLeftBehind:
    SEED = 987_654_321

    @pytest.mark.parametrize(
        "changes",
        [
            {},
            {"epsilon": None},
            {"constraints": None},
            {"constraints": equalized_odds("sex", max_gap=0.1), "feature_bounds": (-3, 3)},
            {"verbose": 1},
        ],
        ids=str,
    )
    @pytest.mark.parametrize("sparse", [False, True])
    def test_no_rows_labels_cells_or_seeds(self, changes, sparse):
        model = classifier(**{"random_state": self.SEED, **changes})
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


class TestSmallGroups:
    def people(self, tiny, n=20_000):
        rng = np.random.default_rng(3)
        origin = rng.choice(["a", "b"], n)
        origin[:tiny] = "c"
        x = rng.normal(size=(n, 2))
        return x, (x[:, 0] + rng.normal(size=n) > 0).astype(int), {"origin": origin}

    def model(self, **changes):
        return RateConstrainedClassifier(
            demographic_parity("origin", max_gap=0.1),
            **{"classes": (0, 1), "group_values": {"origin": ("a", "b", "c")}, "random_state": 0, **changes},
        )

    def test_a_tiny_group_is_named_and_a_large_one_is_not(self):
        x, y, groups = self.people(12)
        with pytest.warns(SmallGroupWarning, match="origin=c") as caught:
            model = self.model().fit(x, y, sensitive_features=groups)
        assert len(caught) == 1
        assert caught[0].filename == __file__
        assert model.doubts_
        assert all("origin=c" in doubt.constraint for doubt in model.doubts_)
        assert {doubt.constraint for doubt in model.doubts_} < set(model.constraints_.names)
        assert all(doubt.uncertainty > 0.01 for doubt in model.doubts_)

    def test_large_groups_are_not_doubted(self):
        x, y, groups = self.people(6000)
        with warnings.catch_warnings():
            warnings.simplefilter("error", SmallGroupWarning)
            assert self.model().fit(x, y, sensitive_features=groups).doubts_ == ()

    def test_rows_are_estimated_from_released_counts(self):
        x, y, groups = self.people(150)
        model = self.model().fit(x, y, sensitive_features=groups)
        (estimate,) = {round(doubt.rows) for doubt in model.doubts_ if "origin=c" in doubt.constraint}
        assert abs(estimate - 150) < 100
        assert all(doubt.rows != 150 for doubt in model.doubts_)

    def test_many_doubts_are_cut_short_in_the_warning(self):
        rng = np.random.default_rng(0)
        groups = rng.permutation(np.resize([f"g{i:02}" for i in range(30)], N))
        limit = demographic_parity("g", max_gap=0.02)
        model = classifier(limit, group_values={"g": sorted(set(groups))})
        with pytest.warns(SmallGroupWarning, match=r"and \d+ more \(see doubts_\)"):
            model.fit(X, Y, sensitive_features={"g": groups})
        assert len(model.doubts_) > 20


class TestLedger:
    def test_two_fits_add_up_in_one_book(self):
        ledger = Ledger()
        first = fit(ledger=ledger, data_name="train", standardise=False)
        second = fit(ledger=ledger, data_name="train", steps=50, random_state=1, standardise=False)
        assert first.ledger_ is second.ledger_ is ledger
        (one,), (two,) = first.privacy_.events, second.privacy_.events[1:]
        assert {one.steps, two.steps} == {30, 50}
        both = epsilon([one, two], DELTA)
        assert ledger.total(DELTA) == second.privacy_.epsilon == both
        assert first.privacy_.epsilon < both < 2

    def test_a_full_book_refuses_before_anything_is_released(self, monkeypatch):
        ledger = Ledger(cap=Budget(1.2, DELTA))
        fit(ledger=ledger)
        records, spent, called = ledger.records, ledger.total_epsilon, []
        monkeypatch.setattr(LinearEngine, "sums", lambda *arguments: called.append(arguments))
        model = classifier(ledger=ledger)
        with pytest.raises(BudgetExceeded, match=r"would pass the ledger's cap .*1\.2"):
            model.fit(X, Y, sensitive_features=GROUPS)
        assert not called
        assert (ledger.records, ledger.total_epsilon) == (records, spent)
        with pytest.raises(NotFittedError):
            model.predict(X)

    def test_no_capped_book_takes_a_training_without_privacy(self):
        ledger = Ledger(cap=Budget(100.0, DELTA))
        with pytest.raises(BudgetExceeded):
            fit(ledger=ledger, epsilon=None)
        assert ledger.records == ()

    @pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, SystemExit])
    @pytest.mark.parametrize("at", [1, 17, 30])
    @pytest.mark.parametrize("interval", [1, 8])
    def test_a_stopped_fit_counts_the_steps_that_ran(self, error, at, interval):
        def stop(record):
            if record.step == at:
                raise error("stop")

        ledger = Ledger()
        model = classifier(ledger=ledger, callback=stop, dual=DualControl(interval=interval))
        with pytest.raises(error, match="stop"):
            model.fit(X, Y, sensitive_features=GROUPS)
        assert model.ledger_ is ledger
        assert steps_in(ledger) == at
        assert ledger.unsettled_steps == 0
        assert ledger.total(DELTA) <= 1.0
        for use in (model.predict, model.predict_proba, model.decision_function):
            with pytest.raises(NotFittedError):
                use(X)

    def test_a_stopped_fit_leaves_its_own_book_too(self):
        def stop(record):
            raise KeyboardInterrupt

        model = classifier(callback=stop)
        with pytest.raises(KeyboardInterrupt):
            model.fit(X, Y, sensitive_features=GROUPS)
        assert steps_in(model.ledger_) == 1
        assert 0 < model.ledger_.total_epsilon < 1

    def test_a_step_that_was_begun_counts(self, monkeypatch):
        """It may have read rows: whether it released is not known, so it is booked."""
        original, calls = LinearEngine.sums, []

        def sums(*arguments):
            calls.append(1)
            if len(calls) == 5:
                raise KeyboardInterrupt
            return original(*arguments)

        monkeypatch.setattr(LinearEngine, "sums", sums)
        model = classifier()
        with pytest.raises(KeyboardInterrupt):
            model.fit(X, Y, sensitive_features=GROUPS)
        assert steps_in(model.ledger_) == 5

    def test_a_stopped_fit_can_be_done_again_within_the_rest(self):
        ledger = Ledger(cap=Budget(1.0, DELTA))

        def stop(record):
            if record.step == 10:
                raise KeyboardInterrupt

        model = classifier(ledger=ledger, callback=stop)
        with pytest.raises(KeyboardInterrupt):
            model.fit(X, Y, sensitive_features=GROUPS)
        with pytest.raises(BudgetExceeded):
            model.set_params(callback=None).fit(X, Y, sensitive_features=GROUPS)
        model.set_params(epsilon=0.5, random_state=1).fit(X, Y, sensitive_features=GROUPS)
        assert 0.5 < ledger.total_epsilon <= 1.0

    def test_a_book_on_disk_outlives_the_fit(self, tmp_path):
        path = tmp_path / "book.json"
        fit(ledger=Ledger.create(path, cap=Budget(3.0, DELTA)), data_name="survey")
        again = Ledger.open(path)
        assert steps_in(again) == 30
        assert again.data_uses == ("survey",)
        model = fit(ledger=again, random_state=1)
        found = Ledger.open(path)
        assert steps_in(found) == 60
        assert found.total_epsilon == model.privacy_.epsilon

    def test_a_book_on_disk_outlives_an_interrupt(self, tmp_path):
        path = tmp_path / "book.json"

        def stop(record):
            if record.step == 9:
                assert steps_in(Ledger.open(path)) >= 9  # whatever happens now, it is written
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            fit(ledger=Ledger.create(path), callback=stop)
        assert steps_in(Ledger.open(path)) == 9

    def test_an_unpickled_book_is_not_written(self):
        model = pickle.loads(pickle.dumps(classifier(ledger=Ledger())))
        with pytest.raises(Exception, match="can only be read"):
            model.fit(X, Y, sensitive_features=GROUPS)

    @pytest.mark.filterwarnings("ignore::RuntimeWarning")
    @pytest.mark.parametrize("steps", [2, 30])
    def test_divergence_is_an_error_that_the_book_survives(self, steps):
        model = classifier(None, learning_rate=1e99, momentum=0.9, steps=steps)
        with pytest.raises(ValueError, match="diverged"):
            model.fit(X, Y)
        assert 1 <= steps_in(model.ledger_) <= 30

    def test_progress_shows_released_values_and_ends_its_line(self, capsys):
        fit(verbose=1)
        shown = capsys.readouterr()
        assert shown.out == ""
        assert "step 30/30, largest constraint value" in shown.err
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
    assert 0 < model.ledger_.total(DELTA) < 1
    with pytest.raises(NotFittedError):
        model.predict(X)
