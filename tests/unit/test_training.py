"""The loop: order of events, state, history, and what a plan refuses."""

import numpy as np
import pytest

from ratewise.accounting.events import TrainingEvent
from ratewise.domain import Domain
from ratewise.exceptions import InvalidInput, InvalidType, RatewiseError, UnsupportedCombination
from ratewise.families import demographic_parity
from ratewise.linear import LinearEngine
from ratewise.mechanisms import GaussianMechanism, LaplaceMechanism, NoNoise
from ratewise.multipliers import Multipliers
from ratewise.partition import compile_constraints
from ratewise.plan import DualControl, Plan
from ratewise.randomness import RandomStreams
from ratewise.training import History, StepRecord, Training

N = 300
RNG = np.random.default_rng(0)
GROUPS = RNG.integers(0, 2, N)
X = RNG.normal(size=(N, 4)) + GROUPS[:, None]
LABELS = (X.sum(axis=1) + RNG.normal(size=N) > 2).astype(int)
CONSTRAINTS = compile_constraints(
    [demographic_parity("g", max_gap=0.05)], Domain(classes=(0, 1), columns={"g": (0, 1)})
)


def make(private=True, constrained=True, **changes):
    noise = {"clip": 1.0, "gradient_noise": 1.0, "histogram_noise": 2.0 if constrained else None}
    if not private:
        noise = {"clip": None, "gradient_noise": None}
    plan = Plan(**{"n_rows": N, "sampling_rate": 0.3, "steps": 60, "private": private, **noise, **changes})
    counted = {}
    if constrained:
        counted = {"cells": CONSTRAINTS.cells(LABELS, {"g": GROUPS}), "n_cells": CONSTRAINTS.n_cells}
    engine = LinearEngine(plan, X, LABELS, 2, **counted)
    return Training(plan, engine, Multipliers(CONSTRAINTS, plan) if constrained else None)


def finish(training, seed=0):
    return list(training.run(RandomStreams.from_seed(seed)))


class TestLoop:
    @pytest.mark.parametrize("private", [True, False])
    @pytest.mark.parametrize("constrained", [True, False])
    def test_one_loop_for_all_four_methods(self, private, constrained):
        control = DualControl(rate=0.05)
        training = make(private, constrained, steps=1000, learning_rate=0.5, momentum=0.5, dual=control)
        records = finish(training)
        predicted = training.engine.model.predictions(X, training.theta)
        gap = abs(predicted[GROUPS == 0].mean() - predicted[GROUPS == 1].mean())
        assert [record.step for record in records] == list(range(1, 1001))
        assert (records[-1].histograms is not None) == constrained
        assert np.mean(predicted == LABELS) > (0.55 if constrained else 0.8)
        assert (gap < 0.15) == constrained

    def test_ledger_is_called_before_each_step_reads_rows(self):
        training, seen = make(), []
        original = training.engine.sums

        def sums(*arguments):
            seen.append("sums")
            return original(*arguments)

        training.engine.sums = sums
        for _ in training.run(RandomStreams.from_seed(0), lambda: seen.append("book")):
            pass
        assert seen == ["book", "sums"] * 60

    def test_a_refusal_stops_before_the_step(self):
        training = make()
        budget = iter(range(10))

        def book():
            if next(budget) == 5:
                raise RatewiseError("spent")

        seen = []
        with pytest.raises(RatewiseError, match="spent"):
            seen.extend(record.step for record in training.run(RandomStreams.from_seed(0), book))
        assert training.steps_done == 5

    def test_empty_batches_release_noise_and_count(self):
        training = make(sampling_rate=1e-12, steps=20)
        records = finish(training)
        assert len(records) == 20
        assert all(record.histograms.all() for record in records)
        assert all(record.gradient_norm > 0 for record in records)

    def test_the_normaliser_is_the_expected_size(self):
        """Twice the rows at half the rate: a step as long, though batches differ in size."""
        training = make(private=False, constrained=False, steps=1, momentum=0.0, sampling_rate=0.5)
        finish(training, seed=3)
        (rows,) = training.plan.sampler.batches(1, RandomStreams.from_seed(3).sampling)
        assert len(rows) != 150
        expected = -training.engine.sums(rows, np.zeros(5), None)[0] / 150
        np.testing.assert_allclose(training.descent.theta, expected)

    def test_constraints_off_leave_plain_descent_alone(self):
        with_idle = make(private=False, dual=DualControl(rate=0.0))
        without = make(private=False, constrained=False)
        finish(with_idle)
        finish(without)
        np.testing.assert_array_equal(with_idle.theta, without.theta)

    @pytest.mark.parametrize("changes", [{"learning_rate": 1e99}, {"learning_rate": 1e32}], ids=repr)
    @pytest.mark.parametrize("private", [True, False])
    def test_divergence_is_an_error_and_no_warning(self, private, changes):
        training = make(private, **{"steps": 5, **changes})
        with pytest.raises(InvalidInput, match="diverged"):
            finish(training)

    @pytest.mark.parametrize("changes", [{"l2": 1e200}, {"learning_rate": 1000.0, "l2": 1.7e308}], ids=repr)
    def test_a_penalty_that_must_diverge_is_refused_before_a_step(self, changes):
        with pytest.raises(InvalidInput, match="product must be at most"):
            make(**changes)

    def test_a_gradient_too_long_to_square_is_no_warning(self):
        training = make(private=False, steps=1)
        training.descent._rates[:] = 1e-290
        training.engine.sums = lambda *_: (np.full(5, 1e300), np.zeros((2, 2)))
        assert finish(training)[0].gradient_norm == pytest.approx(1e300 * 5**0.5 / 90)

    @pytest.mark.parametrize("block_rows", [None, 7])
    def test_steps_counted_together_are_counted_as_one_by_one(self, block_rows):
        control = DualControl(interval=4)
        together = make(private=False, steps=10, dual=control, block_rows=block_rows)
        tallies = []
        original = together.engine.sums

        def sums(rows, theta, table, weight):
            found = original(rows, theta, table, weight)
            alone = make(private=False, block_rows=block_rows).engine.sums(rows, theta, table, weight)
            tallies.append(alone[1])
            np.testing.assert_array_equal(found[0], alone[0])
            return found

        together.engine.sums = sums
        released = [record.histograms for record in finish(together) if record.histograms is not None]
        assert [len(window) for window in released] == [4, 4, 2]
        np.testing.assert_array_equal(np.concatenate(released), tallies)

    def test_averages(self):
        last, tail, power = (make(averaging=name, steps=40) for name in ("none", "tail", "polynomial"))
        iterates = [last.descent.theta.copy() for _ in last.run(RandomStreams.from_seed(1))]
        finish(tail, 1)
        finish(power, 1)
        np.testing.assert_array_equal(last.theta, iterates[-1])
        np.testing.assert_allclose(tail.theta, np.mean(iterates[20:], axis=0))
        weights = np.array([t * (t + 1) * (t + 2) for t in range(1, 41)], dtype=float)
        np.testing.assert_allclose(power.theta, weights @ np.array(iterates) / weights.sum())

    def test_model_of_an_unfinished_run_is_its_last_iterate(self):
        training = make()
        steps = training.run(RandomStreams.from_seed(0))
        for _ in range(5):
            next(steps)
        np.testing.assert_array_equal(training.theta, training.descent.theta)


class TestState:
    def test_resumed_run_goes_on_alike(self):
        whole, first, second = make(), make(), make()
        streams = RandomStreams.from_seed(5)
        steps = whole.run(streams)
        for _ in range(25):
            next(steps)
        first.restore(whole.state())
        second.restore(whole.state())
        assert first.steps_done == 25
        assert len(finish(first, 9)) == 35
        assert len(finish(second, 9)) == 35
        np.testing.assert_array_equal(first.theta, second.theta)
        assert not np.array_equal(first.theta, whole.theta)

    def test_counts_that_wait_for_their_noise_are_in_no_state(self):
        """Between releases nothing that reads rows is kept on the training or in its state."""
        training = make(dual=DualControl(interval=10))
        steps = training.run(RandomStreams.from_seed(0))
        for _ in range(5):
            next(steps)
        assert not training.state()["multipliers"]["_sum"].any()
        assert not any("window" in name for name in vars(training) | vars(training.multipliers))

    def test_state_is_a_copy(self):
        training = make()
        state = training.state()
        finish(training)
        assert not state["theta"].any()
        assert state["steps_done"] == 0

    def test_state_of_another_model_is_refused(self):
        state = make().state()
        state["theta"] = np.zeros(3)
        with pytest.raises(InvalidInput, match="parameters"):
            make().restore(state)
        with pytest.raises(InvalidInput, match="constraints"):
            make(constrained=False).restore(make().state())


class TestHistory:
    def test_holds_every_step_of_a_short_run(self):
        training = make(dual=DualControl(interval=7))
        history, records = History.of(training), []
        for record in training.run(RandomStreams.from_seed(0)):
            history.add(record)
            records.append(record)
        arrays = history.arrays()
        assert arrays["step"].tolist() == list(range(1, 61))
        released = [record.histograms for record in records if record.histograms is not None]
        assert [len(histograms) for histograms in released] == [7] * 8 + [4]
        np.testing.assert_array_equal(arrays["histogram"], np.concatenate(released))
        np.testing.assert_array_equal(arrays["multipliers"], [record.multipliers for record in records])
        np.testing.assert_array_equal(arrays["values"][6:], [record.values for record in records[6:]])
        assert np.isnan(arrays["values"][:6]).all()
        np.testing.assert_array_equal(arrays["gradient_norm"], [record.gradient_norm for record in records])

    @pytest.mark.parametrize("interval", [1, 3, 40])
    def test_long_runs_are_thinned(self, interval):
        history = History(1000, (10, 2), 5, budget=320 * 10)
        waiting = []
        for step in range(1, 1001):
            waiting.append(np.full((10, 2), float(step)))
            released = None
            if step % interval == 0 or step == 1000:
                released, waiting = np.array(waiting), []
            values = np.full(5, float(step - step % interval))
            history.add(StepRecord(step, float(step), released, values, values))
        arrays = history.arrays()
        assert history.every > 1
        assert arrays["step"].tolist() == list(range(1, 1001, history.every))
        np.testing.assert_array_equal(arrays["gradient_norm"], arrays["step"])
        np.testing.assert_array_equal(arrays["histogram"][:, 0, 0], arrays["step"])
        known = arrays["step"] - arrays["step"] % interval
        np.testing.assert_array_equal(arrays["multipliers"][:, 0], known)
        assert sum(array.size for array in arrays.values()) <= 3200 + 100

    def test_a_run_that_stopped_between_releases_shows_what_was_released(self):
        training = make(dual=DualControl(interval=10))
        history = History.of(training)
        steps = training.run(RandomStreams.from_seed(0))
        for _ in range(15):
            history.add(next(steps))
        arrays = history.arrays()
        assert np.isfinite(arrays["histogram"][:10]).all()
        assert np.isnan(arrays["histogram"][10:]).all()
        assert len(arrays["step"]) == 15

    def test_a_resumed_run_starts_its_history_where_it_resumed(self):
        first, second = make(), make()
        steps = first.run(RandomStreams.from_seed(0))
        for _ in range(15):
            next(steps)
        second.restore(first.state())
        history = History.of(second)
        for record in second.run(RandomStreams.from_seed(1)):
            history.add(record)
        arrays = history.arrays()
        assert arrays["step"].tolist() == list(range(16, 61))
        assert np.isfinite(arrays["histogram"]).all()

    def test_without_constraints(self):
        training = make(constrained=False)
        history = History.of(training)
        for record in training.run(RandomStreams.from_seed(0)):
            history.add(record)
        assert set(history.arrays()) == {"step", "gradient_norm"}


class TestTogether:
    def test_engine_and_multipliers_must_match(self):
        bare, counted = make(constrained=False), make()
        with pytest.raises(UnsupportedCombination, match="same constraints"):
            Training(counted.plan, bare.engine, counted.multipliers)
        with pytest.raises(UnsupportedCombination, match="same constraints"):
            Training(counted.plan, counted.engine)

    def test_a_histogram_needs_its_noise_and_the_other_way_round(self):
        bare, counted = make(constrained=False), make()
        with pytest.raises(UnsupportedCombination, match="histogram_noise"):
            Training(counted.plan, bare.engine)
        with pytest.raises(UnsupportedCombination, match="histogram_noise"):
            Training(bare.plan, counted.engine, counted.multipliers)


class TestPlan:
    def plan(self, **changes):
        return Plan(
            **{
                "n_rows": 100,
                "sampling_rate": 0.1,
                "steps": 10,
                "clip": 2.0,
                "gradient_noise": 3.0,
                **changes,
            }
        )

    def test_event_and_mechanisms_come_from_the_same_numbers(self):
        plan = self.plan(histogram="laplace", histogram_noise=5)
        assert plan.step_event == TrainingEvent(0.1, 1, 3.0, 5.0, "laplace")
        assert plan.gradient_mechanism == GaussianMechanism(3.0, 2.0)
        assert plan.histogram_mechanism == LaplaceMechanism(5.0, 1.0)
        assert self.plan(histogram_noise=5).histogram_mechanism == GaussianMechanism(5.0, 1.0)
        assert self.plan().step_event == TrainingEvent(0.1, 1, 3.0)
        assert plan.expected_rows == 10.0

    def test_no_noise_only_by_name(self):
        plan = self.plan(private=False, gradient_noise=None)
        assert plan.step_event is None
        assert plan.gradient_mechanism == plan.histogram_mechanism == NoNoise()
        for missing in ({"gradient_noise": None}, {"clip": None}):
            with pytest.raises(UnsupportedCombination, match="private"):
                self.plan(**missing)
        with pytest.raises(UnsupportedCombination, match="without noise"):
            self.plan(private=False)
        with pytest.raises(UnsupportedCombination, match="histogram_noise"):
            _ = self.plan().histogram_mechanism

    @pytest.mark.parametrize(
        "bad",
        [
            {"n_rows": 0},
            {"sampling_rate": 0.0},
            {"sampling_rate": 1.5},
            {"steps": 2.5},
            {"clip": -1.0},
            {"gradient_noise": 0.0},
            {"histogram_noise": -1.0},
            {"histogram": "cauchy"},
            {"histogram": None, "histogram_noise": 1.0},
            {"row_norm": 0.0},
            {"learning_rate": 0.0},
            {"schedule": "steep"},
            {"warmup": 1.0},
            {"momentum": 1.0},
            {"l1": -1.0},
            {"l1": float("inf")},
            {"l2": -1.0},
            {"averaging": "median"},
            {"averaging_fraction": 0.0},
            {"temperature": 0.0},
            {"rates": "medium"},
            {"block_rows": 0},
        ],
    )
    def test_values_out_of_range_are_refused_by_name(self, bad):
        with pytest.raises(InvalidInput, match=next(iter(bad))):
            self.plan(**bad)

    @pytest.mark.parametrize("bad", [{"private": 1}, {"dual": {}}, {"steps": "many"}, {"clip": "1"}])
    def test_values_of_the_wrong_kind_are_refused_by_name(self, bad):
        with pytest.raises(InvalidType, match=next(iter(bad))):
            self.plan(**bad)

    @pytest.mark.parametrize(
        "bad",
        [{"rate": -1.0}, {"momentum": 1.0}, {"memory": 1.0}, {"interval": 0}, {"cap": 0.0}, {"radius": -1.0}],
    )
    def test_dual_control_is_checked_too(self, bad):
        with pytest.raises(InvalidInput, match=next(iter(bad))):
            DualControl(**bad)

    def test_schedules(self):
        rates = self.plan(schedule="cosine", learning_rate=2.0, warmup=0.2).learning_rates()
        assert rates[0] == pytest.approx(1.0)
        assert rates[1] == pytest.approx(1 + np.cos(0.1 * np.pi))
        assert rates[5] == pytest.approx(1.0)
        assert np.all(np.diff(rates[1:]) < 0)
