"""What fuzzing found in the PyTorch engine, each with an input as small as it can be: our own error."""

import numpy as np
import pytest
import torch

import ratewise as rw
import ratewise.torch as rt
from ratewise._files import state_from_bytes, state_to_bytes
from ratewise.accounting import PrivacyUnit, TrainingEvent
from ratewise.constraints.compiled import compile_constraints
from ratewise.data.table import code_table
from ratewise.exceptions import InvalidInput, InvalidType, LedgerError
from ratewise.torch.trainer import CHECKPOINT
from ratewise.training.plan import TRAINING, Plan

torch.set_num_threads(1)
COMPILED = compile_constraints(rw.demographic_parity("g", max_gap=0.2), rw.Domain((0, 1), {"g": (0, 1)}))
EVENT = TrainingEvent(0.5, 3, 2.0, 4.0)
PLAN = Plan(8, 0.5, 3, {TRAINING: EVENT}, PrivacyUnit(), "zero_out", float("inf"), 1e-5)


def rows():
    y, g = np.arange(8) % 2, np.arange(8) // 4
    x = np.random.default_rng(0).normal(size=(8, 2)).astype(np.float32)
    return rt.TensorRows(x, y, code_table(COMPILED, y, {"g": g})[1])


def trainer(path):
    return rt.Trainer(rt.MLP(2, 2, (2,)), rows(), PLAN, COMPILED, checkpoint=str(path), checkpoint_every=1)


class TestCheckpointsWithAChecksumMadeAnew:
    @pytest.fixture
    def spoil(self, tmp_path):
        """Return a function that changes one part of a written checkpoint, and resumes."""
        path = tmp_path / "run"
        trainer(path).run()
        state = state_from_bytes(path.read_bytes(), CHECKPOINT, "as written")

        def spoilt(name, value):
            changed = {**state, name: value}
            if name in state["loop"]:
                changed = {**state, "loop": {**state["loop"], name: value}}
            path.write_bytes(state_to_bytes(CHECKPOINT, changed))
            return trainer(path).resume()

        return spoilt

    @pytest.mark.parametrize("value", [99, -1, 2.5, None, "3", True])
    def test_steps_that_cannot_be(self, spoil, value):
        with pytest.raises(InvalidInput, match="no sound checkpoint: its steps are not"):
            spoil("done", value)

    @pytest.mark.parametrize("part", ["loop", "dual", "optimizer", "history", "module", "admission", "identity"])
    def test_parts_that_are_none(self, spoil, part):
        with pytest.raises((InvalidInput, LedgerError), match=r"no sound checkpoint|admitted no plan|another run"):
            spoil(part, 3)

    def test_parameters_that_are_no_numbers(self, spoil):
        module = rt.MLP(2, 2, (2,)).state_dict()
        parameters = {name: np.full(value.shape, np.nan) for name, value in module.items()}
        with pytest.raises(InvalidInput, match="not finite; take an older copy"):
            spoil("module", parameters)

    def test_contents_that_are_no_mapping(self):
        with pytest.raises(InvalidInput, match=r"'it' is no sound checkpoint .* take an older copy"):
            state_from_bytes(state_to_bytes(CHECKPOINT, [1]), CHECKPOINT, "it")
        with pytest.raises(InvalidInput, match="no file that ratewise wrote"):
            state_from_bytes(b"no file of arrays", CHECKPOINT, "it")


class TestSizes:
    @pytest.mark.parametrize(
        ("build", "message"),
        [
            (lambda: rt.MLP(0, 2), "inputs must be at least 1"),
            (lambda: rt.MLP(2.5, 2), "inputs must be a whole number, got float"),
            (lambda: rt.MLP(2, 10**30), "num_classes must be at most"),
            (lambda: rt.MLP(2, 2, 3), "hidden must be a sequence of sizes, got int"),
            (lambda: rt.SmallCNN(2, in_channels=3, width=-1), "width must be at least 1"),
            (lambda: rt.ResNet(2, (1,), (4, 4), groups=2), "blocks and widths must name the same stages"),
            (lambda: rt.ResNet(2, (1,), (5,), groups=2), "widths must be multiples of groups"),
            (lambda: rt.share_of(3, 2, 2), r"rank must be below world \(2\), got 2"),
            (lambda: rt.share_of(-1, 0, 1), "n_rows must be at least 0"),
        ],
    )
    def test_sizes_that_are_none(self, build, message):
        with pytest.raises((InvalidInput, InvalidType), match=message):
            build()

    def test_a_small_network_of_a_width_that_eight_does_not_divide(self):
        assert rt.SmallCNN(2, in_channels=3, width=3)(torch.zeros(1, 3, 16, 16)).shape == (1, 2)

    def test_a_plan_for_no_rows(self):
        with pytest.raises(InvalidInput, match="n_units must be at least 1, got 0"):
            rt.network_plan(0, epsilon=1.0, delta=1e-3)


class TestArgumentsOfAnotherKind:
    def test_a_trainer_of_anything(self):
        with pytest.raises(InvalidType, match="plan must be a Plan, got NoneType"):
            rt.Trainer(rt.MLP(2, 2), rows(), None, COMPILED)
        with pytest.raises(InvalidType, match="constraints must be a CompiledConstraints, got int"):
            rt.Trainer(rt.MLP(2, 2), rows(), PLAN, 3)

    @pytest.mark.parametrize("place", [0, 1, 2])
    def test_rows_of_a_scalar(self, place):
        given = [np.zeros((2, 1), dtype=np.float32), np.array([0, 1]), np.array([0, 1])]
        given[place] = np.float64(3.0)
        with pytest.raises(InvalidType, match="must hold one entry per row"):
            rt.TensorRows(*given)

    @pytest.mark.parametrize("place", [0, 1])
    def test_rows_of_nothing(self, place):
        given = [np.zeros((2, 1), dtype=np.float32), np.array([0, 1])]
        given[place] = None
        with pytest.raises(InvalidType, match="must hold one entry per row, got NoneType"):
            rt.TensorRows(*given)

    def test_classes_and_groups_of_a_custom_loop(self):
        data = [(torch.zeros(2), 0, {"g": 0}), (torch.ones(2), 1, {"g": 1})]
        module = rt.MLP(2, 2)
        options = {"epsilon": 1.0, "delta": 1e-3, "steps": 1, "classes": [0, 1], "group_values": {"g": [0, 1]}}
        descent = torch.optim.SGD(module.parameters(), lr=0.1)
        with pytest.raises(InvalidType, match="classes must be a collection of values, got int"):
            rt.make_private(module, descent, data, **{**options, "classes": 3})
        with pytest.raises(InvalidType, match="group_values must map columns to values, got list"):
            rt.make_private(module, descent, data, **{**options, "group_values": [1]})


class TestItems:
    @pytest.mark.parametrize(
        ("data", "domain", "message"),
        [
            ({"": 0}, rw.Domain(classes=(0, 1)), "items by number, got dict"),
            ([(0.0, 0)], None, "domain must be a Domain, got NoneType"),
        ],
    )
    def test_what_is_no_data_set_and_no_domain(self, data, domain, message):
        with pytest.raises(InvalidType, match=message):
            rt.DatasetRows(data, domain)
