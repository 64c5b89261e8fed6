"""The loop for modules: physical batches, empty batches, booking, checkpoints, noise and samples."""

import io
import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from ratewise import Domain, demographic_parity
from ratewise._files import state_from_bytes, state_to_bytes
from ratewise.accounting import Budget, GaussianEvent, Ledger, PrivacyUnit, TrainingEvent, epsilon
from ratewise.constraints.compiled import compile_constraints
from ratewise.data.table import code_table
from ratewise.exceptions import BudgetExceeded, InvalidInput, InvalidType, UnsupportedCombination
from ratewise.mechanisms.noise import RoundedGaussianMechanism
from ratewise.mechanisms.sampling import KeyedSample
from ratewise.torch import MLP, TensorRows, Trainer
from ratewise.torch.clipping import clipping_slack
from ratewise.torch.distributed import Processes, TotalRelease, share_of
from ratewise.torch.trainer import CHECKPOINT
from ratewise.training.config import TrainingConfig
from ratewise.training.plan import CERTIFICATE, TRAINING, Plan

torch.set_num_threads(1)
N, D = 300, 4
KEY = bytes(range(32))


def problem():
    rng = np.random.default_rng(2)
    X = torch.from_numpy(rng.normal(size=(N, D)))
    group = rng.integers(0, 2, N)
    labels = (X[:, 0].numpy() + group > 0.5).astype(int)
    compiled = compile_constraints(demographic_parity("sex", max_gap=0.02), Domain((0, 1), {"sex": (0, 1)}))
    return TensorRows(X, labels, code_table(compiled, labels, {"sex": group})[1]), compiled


CONFIG = TrainingConfig(clip=1.0, learning_rate=0.3, momentum=0.5, dual_rate=0.5)


def plan_of(*, steps=20, sampling_rate=0.2, n_units=N, private=True, certificate=False, **noise):
    """Return a plan of training steps, and of a certificate if asked for."""
    choices = {"gradient_noise": 2.0, "histogram_noise": 4.0, "histogram": "gaussian", **noise}
    if choices["histogram_noise"] is None:
        choices["histogram"] = None
    events = {TRAINING: TrainingEvent(sampling_rate, steps, **choices)} if private else {}
    if certificate:
        events[CERTIFICATE] = GaussianEvent(3.0)
    return Plan(n_units, sampling_rate, steps, events, PrivacyUnit(), "zero_out", float("inf"), 1e-5)


def trainer_of(plan=None, module=None, config=CONFIG, **choices):
    rows, compiled = problem()
    torch.manual_seed(0)
    module = MLP(D, 2, (6,)).double() if module is None else module
    choices = {"random_state": 1, "config": config, **choices}
    return Trainer(module, rows, plan or plan_of(), compiled, **choices)


def flat(trainer):
    return torch.cat([p.detach().reshape(-1) for p in trainer.module.parameters()]).numpy()


class TestStep:
    @pytest.mark.parametrize("rates", ["hard", "soft"])
    def test_physical_batches_change_nothing(self, rates):
        found = []
        for size in (1, 7, 1000):
            trainer = trainer_of(plan_of(steps=6), config=replace(CONFIG, rates=rates), physical_batch=size)
            history = trainer.run().arrays()
            found.append((flat(trainer), history["histogram"]))
        for other, histogram in found[1:]:
            np.testing.assert_allclose(other, found[0][0], rtol=1e-10, atol=1e-13)
            np.testing.assert_allclose(histogram, found[0][1], rtol=1e-12, atol=1e-9)

    def test_empty_batch_releases_noise_and_counts(self):
        trainer = trainer_of()
        trainer._sampler = lambda _: np.zeros(0, dtype=np.intp)
        before = flat(trainer)
        records = list(trainer.steps())
        assert len(records) == 20
        assert all(record.gradient_norm > 0 for record in records)
        assert not np.array_equal(before, flat(trainer))
        assert all(np.abs(record.histogram).sum() > 0 for record in records)
        assert trainer.ledger.events()[0].steps == 20

    def test_sums_are_divided_by_the_expected_rows_and_never_by_those_that_came(self):
        """One row, no noise: the step is its clipped gradient over q * n."""
        plan = plan_of(private=False, steps=1)
        trainer = trainer_of(plan, config=replace(CONFIG, momentum=0.0))
        trainer._sampler = lambda _: np.array([5])
        before = flat(trainer)
        list(trainer.steps())
        moved = np.linalg.norm(before - flat(trainer))
        assert 0 < moved <= CONFIG.learning_rate * CONFIG.clip / plan.expected_units * (1 + 1e-9)

    def test_one_row_moves_what_is_released_by_at_most_the_sensitivity(self):
        """Before noise, with and without each of some rows: the clip for the gradient, 1 for the counts."""
        trainer = trainer_of(config=replace(CONFIG, clip=0.3))
        trainer.run()
        engine, dual = trainer.engine, trainer.dual
        rows = np.arange(40)
        full, tally = engine.sums(rows, None, dual.table, 0.3)
        largest = 0.0
        for left_out in range(0, 40, 3):
            fewer, counted = engine.sums(np.delete(rows, left_out), None, dual.table, 0.3)
            gap = torch.cat([(a - b).reshape(-1) for a, b in zip(full, fewer, strict=True)])
            largest = max(largest, float(gap.norm()))
            difference = tally - counted
            assert np.abs(difference).sum() == 1
        assert 0.29 < largest <= 0.3 * (1 + 1e-9)

    @pytest.mark.filterwarnings("ignore:TF32 acceleration")
    def test_sensitivity_is_the_same_in_half_precision(self):
        # without mkldnn: its half-precision products end in an illegal instruction on some virtual machines
        with torch.backends.mkldnn.flags(enabled=False):
            self.half_precision()

    def half_precision(self):
        rows, compiled = problem()
        rows._x = rows._x.float()
        torch.manual_seed(0)
        config = replace(CONFIG, clip=0.05)
        trainer = Trainer(MLP(D, 2, (40, 40)), rows, plan_of(), compiled, config=config, autocast=True)
        norms = []
        for row in range(30):
            sums = trainer.engine.sums(np.array([row]), clip=0.05).gradient
            norms.append(float(torch.cat([part.reshape(-1) for part in sums]).norm()))
        assert max(norms) <= 0.05 * (1 + 1e-5)
        assert min(norms) > 0.04
        trainer.run()
        assert trainer.steps_done == 20

    def test_module_with_its_own_gradients_is_left_alone(self):
        module = MLP(D, 2, (6,)).double()
        frozen = module[1].bias
        frozen.requires_grad_(False)
        before = frozen.clone()
        trainer = trainer_of(module=module)
        trainer.run()
        assert torch.equal(frozen, before)
        assert len(trainer.engine.parameters) == 3


class TestBooking:
    def test_steps_are_recorded_before_they_read_rows(self):
        trainer = trainer_of()
        read = trainer.engine._rows.take
        seen = []

        def noting(rows):
            seen.append(trainer.admission.released[TRAINING])
            return read(rows)

        trainer.engine._rows.take = noting
        for taken, _ in enumerate(trainer.steps(), start=1):
            assert seen[-1] >= taken

    def test_the_ledger_states_what_ran_when_the_loop_is_left(self):
        trainer = trainer_of()
        for record in trainer.steps():
            if record.step == 7:
                break
        (event,) = trainer.ledger.events()
        assert event == TrainingEvent(0.2, 20, 2.0, 4.0)  # the whole plan counts
        assert trainer.admission.released[TRAINING] == 7

    def test_cap_refuses_before_the_first_row(self):
        trainer = trainer_of(ledger=Ledger(cap=Budget(0.01, 1e-5)))
        trainer.engine._rows.take = None  # a read would end in another error
        with pytest.raises(BudgetExceeded):
            trainer.run()
        assert trainer.ledger.records == ()

    def test_cap_that_the_first_stretch_keeps_and_the_whole_run_does_not(self):
        plan = plan_of(steps=200)
        half = epsilon(plan.training.with_steps(100), 1e-5)
        ledger = Ledger(cap=Budget(half, 1e-5))
        trainer = trainer_of(plan, ledger=ledger)
        with pytest.raises(BudgetExceeded, match="above the cap"):
            trainer.run()
        assert trainer.steps_done == 0
        assert ledger.records == ()

    def test_sample_of_a_step_that_failed_is_never_read_again(self):
        """Two releases of one sample would be less private than the two samples that the book counts."""
        trainer, seen = trainer_of(), []
        steps = trainer.steps()
        next(steps)
        draw, move = trainer._sampler, trainer.loop.optimizer.optimizer.step
        trainer._sampler = lambda step: (seen.append(step), draw(step))[1]
        trainer.loop.optimizer.optimizer.step = None  # fails after the release, before the weights have moved
        with pytest.raises(TypeError):
            next(steps)
        trainer.loop.optimizer.optimizer.step = move
        trainer.run()
        assert seen == list(range(1, 20))
        assert sum(event.steps for event in trainer.ledger.events()) == 20

    def test_without_privacy_the_ledger_says_so(self):
        plan = plan_of(private=False)
        trainer = trainer_of(plan)
        trainer.run()
        assert trainer.ledger.total(1e-5) == np.inf

    def test_a_ledger_that_is_none_is_refused_at_once(self):
        with pytest.raises(InvalidType, match="ledger must be a"):
            trainer_of(ledger="book")

    def test_checkpoint_in_a_folder_that_does_not_exist(self, tmp_path):
        trainer = trainer_of(checkpoint=tmp_path / "none" / "run")
        with pytest.raises(InvalidInput, match="folder that does not exist"):
            trainer.run()
        assert trainer.ledger.records == ()

    def test_loss_that_is_not_a_number_for_one_class_only(self):
        rows, _ = problem()
        weights = torch.tensor([1.0, 1.0, float("nan")], dtype=torch.float64)

        def loss(logits, labels):
            return nn.functional.cross_entropy(logits, labels, reduction="none") * weights[labels]

        plain = TensorRows(rows._x, rows._labels)
        trainer = Trainer(
            MLP(D, 3).double(), plain, plan_of(histogram_noise=None), n_classes=3, loss=loss, random_state=1
        )
        with pytest.raises(InvalidInput, match="not finite for made-up logits of some classes"):
            trainer.run()
        assert trainer.ledger.records == ()

    def test_plan_and_constraints_must_fit(self):
        rows, compiled = problem()
        with pytest.raises(UnsupportedCombination, match="histogram_noise"):
            Trainer(MLP(D, 2).double(), rows, plan_of(histogram_noise=None), compiled)
        with pytest.raises(InvalidInput, match="300 units"):
            Trainer(MLP(D, 2).double(), rows, plan_of(n_units=301), compiled)


def stopped(path, at, **choices):
    trainer = trainer_of(checkpoint=path, checkpoint_every=4, **choices)
    for record in trainer.steps():
        if record.step == at:
            break
    return trainer


class TestCheckpoint:
    def test_resumes_where_it_was(self, tmp_path):
        path = tmp_path / "run"
        first = stopped(path, 6)
        again = trainer_of(checkpoint=path, checkpoint_every=4)
        assert again.resume()
        assert again.steps_done == 6
        np.testing.assert_array_equal(flat(again), flat(first))
        np.testing.assert_array_equal(again.dual.multipliers, first.dual.multipliers)
        assert (
            again.loop.optimizer.optimizer.param_groups[0]["lr"] == first.loop.optimizer.optimizer.param_groups[0]["lr"]
        )
        again.run()
        assert again.ledger.events()[0].steps == 20

    def test_without_a_file_the_run_starts_afresh(self, tmp_path):
        assert not trainer_of(checkpoint=tmp_path / "none").resume()

    def test_existing_file_is_not_overwritten_by_another_run(self, tmp_path):
        stopped(tmp_path / "run", 6)
        with pytest.raises(InvalidInput, match="exists already"):
            trainer_of(checkpoint=tmp_path / "run").run()

    def test_noise_and_samples_are_fresh_though_the_seed_is_the_same(self, tmp_path):
        first = stopped(tmp_path / "run", 6)
        again = trainer_of(checkpoint=tmp_path / "run", checkpoint_every=4)
        again.resume()
        again.start()
        assert again.engine.random_key != first.engine.random_key  # both are made of the key of the samples
        afresh = trainer_of()
        afresh.start()
        assert afresh.engine.random_key == first.engine.random_key  # so the comparison above says something
        assert again.streams.secure
        assert not afresh.streams.secure

    def test_lost_steps_count_as_taken(self, tmp_path):
        """The file is as a kill within the second stretch leaves it: weights after 4 steps, 8 booked."""
        path = tmp_path / "run"
        trainer = trainer_of(checkpoint=path, checkpoint_every=4)
        for record in trainer.steps():
            if record.step == 6:
                left = path.read_bytes()
                break
        path.write_bytes(left)
        again = trainer_of(checkpoint=path, checkpoint_every=4)
        again.resume()
        assert again.steps_done == 8
        assert again.loop.optimizer.relative_rate == pytest.approx(1 - 8 / 20)
        again.run()
        assert again.ledger.events()[0].steps == 20

    @pytest.mark.parametrize(
        "change",
        [
            {"gradient_noise": 1.9},
            {"histogram_noise": 3.0},
            {"sampling_rate": 0.3},
            {"steps": 30},
            {"histogram": "laplace"},
            {"certificate": True},
        ],
        ids=lambda change: next(iter(change)),
    )
    def test_other_privacy_parameters_are_refused(self, tmp_path, change):
        stopped(tmp_path / "run", 6)
        other = trainer_of(plan_of(**change), checkpoint=tmp_path / "run")
        with pytest.raises(InvalidInput, match="belongs to another run"):
            other.resume()

    def test_another_clip_is_refused(self, tmp_path):
        stopped(tmp_path / "run", 6)
        other = trainer_of(config=replace(CONFIG, clip=2.0), checkpoint=tmp_path / "run")
        with pytest.raises(InvalidInput, match="clip differs"):
            other.resume()

    def test_certificate_is_released_once_and_kept(self, tmp_path):
        path = tmp_path / "run"
        first = trainer_of(plan_of(certificate=True), checkpoint=path)
        first.run()
        assert first.admission.released[CERTIFICATE] == 1
        again = trainer_of(plan_of(certificate=True), checkpoint=path)
        assert again.resume()
        again.run()
        assert again.certificate.rows == first.certificate.rows
        assert again.admission.released[CERTIFICATE] == 1

    def test_frozen_parameters_and_buffers_come_back(self, tmp_path):
        def build(seed):
            torch.manual_seed(seed)
            module = MLP(D, 2, (6,)).double()
            module[1].weight.requires_grad_(False)
            return trainer_of(module=module, checkpoint=tmp_path / "run", checkpoint_every=4)

        first = build(1)
        for record in first.steps():
            if record.step == 6:
                break
        again = build(2)
        assert again.resume()
        np.testing.assert_array_equal(flat(again), flat(first))

    def test_another_model_or_another_ledger_is_refused(self, tmp_path):
        stopped(tmp_path / "run", 6)
        with pytest.raises(InvalidInput, match="parameters differs"):
            trainer_of(module=MLP(D, 2, (7,)).double(), checkpoint=tmp_path / "run").resume()
        foreign = Ledger.create(tmp_path / "book.json")
        with pytest.raises(InvalidInput, match="not the one"):
            trainer_of(ledger=foreign, checkpoint=tmp_path / "run").resume()

    def test_a_ledger_in_a_file_outlives_an_old_copy_of_the_checkpoint(self, tmp_path):
        path, book = tmp_path / "run", tmp_path / "book.json"
        trainer = trainer_of(checkpoint=path, checkpoint_every=4, ledger=Ledger.create(book))
        for record in trainer.steps():
            if record.step == 2:
                old = path.read_bytes()
        path.write_bytes(old)
        again = trainer_of(checkpoint=path, checkpoint_every=4, ledger=Ledger.open(book))
        again.resume()
        assert again.steps_done == 20
        assert list(again.steps()) == []

    @pytest.mark.parametrize("broken", [lambda data: data[:-100], lambda data: data[:200] + b"x" + data[201:]])
    def test_damaged_file_is_refused(self, tmp_path, broken):
        stopped(tmp_path / "run", 6)
        path = tmp_path / "run"
        path.write_bytes(broken(path.read_bytes()))
        with pytest.raises(InvalidInput, match="damaged"):
            trainer_of(checkpoint=path).resume()
        path.write_bytes(b"something else")
        with pytest.raises(InvalidInput, match="no file that ratewise wrote"):
            trainer_of(checkpoint=path).resume()

    def test_reading_executes_nothing(self, tmp_path):
        class Malice:
            def __reduce__(self):
                return os.mkdir, (str(tmp_path / "executed"),)

        buffer = io.BytesIO()
        torch.save({"module": Malice()}, buffer)
        with pytest.raises(InvalidInput, match="nothing in it was run"):
            state_from_bytes(buffer.getvalue(), CHECKPOINT, "it")
        with pytest.raises(InvalidType, match="cannot hold Malice"):
            state_to_bytes(CHECKPOINT, {"module": Malice()})
        assert not (tmp_path / "executed").exists()

    def test_any_optimizer_resumes(self, tmp_path):
        def build():
            torch.manual_seed(0)
            module = MLP(D, 2, (6,)).double()
            optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
            return trainer_of(module=module, optimizer=optimizer, scheduler=scheduler, checkpoint=tmp_path / "run")

        first = build()
        for record in first.steps():
            if record.step == 5:
                break
        again = build()
        again.resume()
        kept = again.loop.optimizer.optimizer.state_dict()["state"][0]["exp_avg"]
        assert torch.equal(kept, first.loop.optimizer.optimizer.state_dict()["state"][0]["exp_avg"])


class TestNoise:
    def test_noise_has_the_plan_s_deviation_on_every_entry(self):
        mechanism = plan_of(gradient_noise=3.0).gradient_mechanism(0.5, 1e-4)
        sums = [torch.zeros(20_000), torch.zeros(100, 300), torch.zeros(40, 5).T]
        released = TotalRelease(mechanism, Processes()).release(sums, np.random.default_rng(8))
        drawn = torch.cat([part.reshape(-1) for part in released])
        assert float(drawn.std()) == pytest.approx(1.5, rel=0.02)
        assert abs(float(drawn.mean())) < 0.03
        assert len(torch.unique(drawn)) > 0.99 * len(drawn)
        steps = drawn.double() / mechanism.grid
        assert torch.equal(steps, steps.round())

    def test_rounding_of_the_sum_is_part_of_the_sensitivity(self):
        trainer = trainer_of()
        assert trainer.loop.gradient_mechanism.mechanism.slack >= clipping_slack(plan_of().expected_units)

    def test_the_mechanism_releases_all_parts_as_one_value(self):
        class Constant:
            def release_parts(self, parts, rng, out):
                assert [part.shape for part in parts] == [(3,), (2, 2)]
                for part in out:
                    part[...] = 2.5

        sums = [torch.zeros(3), torch.zeros(2, 2)]
        released = TotalRelease(Constant(), Processes()).release(sums, np.random.default_rng(8))
        assert [part.shape for part in released] == [(3,), (2, 2)]
        assert all(bool((part == 2.5).all()) for part in released)


class TestSamples:
    def test_shares_cover_all_rows_once(self):
        for world in (1, 2, 3, 7):
            shares = [share_of(101, rank, world) for rank in range(world)]
            assert [row for share in shares for row in share] == list(range(101))

    @pytest.mark.parametrize("block", [10, 64, 1 << 20])
    def test_sample_does_not_depend_on_the_shares(self, block):
        for world in (2, 3, 50):
            shares = [share_of(997, rank, world) for rank in range(world)]
            for step in range(5):
                sample = KeyedSample(997, 0.3, KEY, step, block)
                together = np.concatenate([sample.units(share.start, share.stop) for share in shares])
                np.testing.assert_array_equal(together, sample.units(0, 997))

    def test_rows_are_kept_with_the_rate_independently_of_steps_and_rows(self):
        kept = np.zeros((4000, 200))
        for step in range(4000):
            kept[step, KeyedSample(200, 0.3, KEY, step, 64).units(0, 200)] = 1
        deviation = np.sqrt(0.3 * 0.7 / 4000)
        assert np.abs(kept.mean(axis=0) - 0.3).max() < 5 * deviation
        correlation = np.corrcoef(kept[:, [0, 1, 63, 64, 127, 128]].T) - np.eye(6)
        assert np.abs(correlation).max() < 5 / np.sqrt(4000)
        sizes = kept.sum(axis=1)
        assert sizes.var() == pytest.approx(200 * 0.3 * 0.7, rel=0.15)
        assert abs(np.corrcoef(sizes[1:], sizes[:-1])[0, 1]) < 5 / np.sqrt(4000)


class TestSeeds:
    def test_one_seed_twice_on_a_ledger_is_refused_before_anything_is_recorded(self):
        ledger = Ledger(cap=Budget(99.0, 1e-5))
        trainer_of(ledger=ledger).run()
        before = ledger.records
        with pytest.raises(InvalidInput, match="random_state was used"):
            trainer_of(ledger=ledger).run()
        assert ledger.records == before
        trainer_of(ledger=ledger, random_state=None).run()

    def test_one_generator_serves_trainers_that_are_made_before_any_of_them_runs(self):
        ledger, rng = Ledger(cap=Budget(99.0, 1e-5)), np.random.default_rng(6)
        trainers = [trainer_of(ledger=ledger, random_state=rng) for _ in range(2)]
        for trainer in trainers:
            trainer.run()
        before = ledger.records
        with pytest.raises(InvalidInput, match="random_state was used for an earlier training of a network"):
            trainer_of(ledger=ledger, random_state=np.random.default_rng(6)).run()
        assert ledger.records == before

    def test_noise_is_on_a_grid_in_either_precision(self):
        for dtype in (torch.float32, torch.float64):
            x = torch.randn(N, D, dtype=dtype)
            module = MLP(D, 2, (6,)).to(dtype)
            plan = plan_of(histogram_noise=None)
            trainer = Trainer(module, TensorRows(x, np.zeros(N, dtype=int)), plan, n_classes=2)
            assert isinstance(trainer.loop.gradient_mechanism.mechanism, RoundedGaussianMechanism)
            assert len(list(trainer.steps())) == 20


class TestModules:
    def test_the_last_iterate_is_the_model(self):
        trainer = trainer_of()
        trainer.run()
        model = trainer.fitted_module()
        last = torch.cat([p.reshape(-1) for p in model.parameters()]).detach().numpy()
        np.testing.assert_array_equal(last, flat(trainer))
        assert not model.training

    def test_learning_rate_falls_to_zero_for_any_optimizer(self):
        module = MLP(D, 2, (6,)).double()
        optimizer = torch.optim.Adam(module.parameters(), lr=0.1)
        trainer = trainer_of(module=module, optimizer=optimizer)
        rates = [optimizer.param_groups[0]["lr"] for _ in trainer.steps()]
        np.testing.assert_allclose(rates, 0.1 * (1 - np.arange(1, 21) / 20), atol=1e-15)  # of the next step

    def test_training_that_diverges_says_so(self):
        trainer = trainer_of(config=replace(CONFIG, learning_rate=1e30))
        with pytest.raises(InvalidInput, match=r"diverged|finite"):
            trainer.run()

    def test_trying_out_leaves_buffers_as_they_were(self):
        class Counting(nn.Linear):
            def __init__(self):
                super().__init__(D, 2)
                self.register_buffer("calls", torch.zeros(()))

            def forward(self, x):
                self.calls += 1
                return super().forward(x)

        trainer = trainer_of(module=nn.Sequential(nn.Flatten(), Counting()).double())
        trainer.engine.try_out()
        assert float(trainer.module[1].calls) == 0

    def test_dropout_and_other_modules_without_parameters_are_fine(self):
        module = nn.Sequential(nn.Linear(D, 6), nn.Dropout(0.3), nn.Tanh(), nn.Linear(6, 2)).double()
        assert len(list(trainer_of(module=module).steps())) == 20
