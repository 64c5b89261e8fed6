"""Rows for networks: from memory, from mapped files and from data sets."""

import numpy as np
import pytest
import torch

from ratewise import Domain, demographic_parity
from ratewise.accounting import PrivacyUnit, TrainingEvent
from ratewise.constraints.compiled import compile_constraints
from ratewise.data.table import code_labels, code_table
from ratewise.exceptions import InvalidInput, InvalidType
from ratewise.torch import MLP, DatasetRows, TensorRows, Trainer
from ratewise.training.plan import TRAINING, Plan

torch.set_num_threads(1)
rng = np.random.default_rng(0)
N, D = 90, 3
X = rng.normal(size=(N, D)).astype(np.float32)
Y = rng.choice(["no", "yes"], N)
SEX = rng.choice(["F", "M"], N)
DOMAIN = Domain(("no", "yes"), {"sex": ("F", "M")})
COMPILED = compile_constraints(demographic_parity("sex", max_gap=0.1), DOMAIN)
LABELS = code_labels(Y, DOMAIN)
EVENT = TrainingEvent(0.3, 5, 1.0, 1.0)
PLAN = Plan(N, 0.3, 5, {TRAINING: EVENT}, PrivacyUnit(), "zero_out", float("inf"), 1e-5)


def same(batch, other):
    assert torch.equal(batch.x, other.x)
    assert torch.equal(batch.labels, other.labels)
    assert torch.equal(batch.cells, other.cells)


class TestMappedArrays:
    def test_train_as_from_memory(self, tmp_path):
        np.save(tmp_path / "x.npy", X)
        mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
        found = []
        for x in (X, mapped):
            torch.manual_seed(0)
            rows = TensorRows(x, LABELS, code_table(COMPILED, LABELS, {"sex": SEX})[1])
            trainer = Trainer(MLP(D, 2, (4,)), rows, PLAN, COMPILED, random_state=0)
            trainer.run()
            found.append(torch.cat([p.reshape(-1) for p in trainer.module.parameters()]))
        assert torch.equal(*found)


class TestDataset:
    def rows(self, items):
        class Listed(torch.utils.data.Dataset):
            def __len__(self):
                return len(items)

            def __getitem__(self, row):
                return items[row]

        return DatasetRows(Listed(), DOMAIN, COMPILED)

    def test_groups_by_name_or_alone(self):
        x = torch.zeros(2)
        named = self.rows([(x, "no", {"sex": "F", "other": 1}), (x, "yes", {"sex": "M"})])
        alone = self.rows([(x, "no", "F"), (x, "yes", "M")])
        rows = np.array([0, 1])
        same(named.take(rows), alone.take(rows))
        assert named.take(rows).x.dtype == torch.float32

    def test_no_rows_of_a_sample(self):
        batch = self.rows([(torch.zeros(2), "no", "F")]).take(np.zeros(0, dtype=np.intp))
        assert batch.x.shape == (0, 2)
        assert batch.cells.shape == (0,)

    @pytest.mark.parametrize(
        ("item", "kind"),
        [
            ((torch.zeros(2), "no"), InvalidInput),
            ((torch.zeros(2), "no", {"race": "A"}), InvalidInput),
            (torch.zeros(2), InvalidType),
            ((torch.zeros(2), "no", "F", 4), InvalidType),
        ],
    )
    def test_items_of_another_kind(self, item, kind):
        with pytest.raises(kind):
            self.rows([item])

    def test_empty_data(self):
        with pytest.raises(InvalidInput, match="no rows"):
            self.rows([])

    def test_trainer_without_groups(self):
        """Limits would be ignored, and nothing would say so."""
        with pytest.raises(InvalidInput, match="rows have no groups"):
            Trainer(MLP(3, 2), TensorRows(X, LABELS), PLAN, COMPILED)

    @pytest.mark.parametrize("place", ["labels", "cells"])
    def test_numbers_that_are_not_whole(self, place):
        codes = {"labels": LABELS, "cells": code_table(COMPILED, LABELS, {"sex": SEX})[1]}
        codes[place] = codes[place].astype(np.float64)
        with pytest.raises(InvalidType, match=f"{place} must be whole numbers from 0"):
            Trainer(MLP(3, 2), TensorRows(X, **codes), PLAN, COMPILED)

    def test_numbers_in_tensors_and_lists(self):
        cells = code_table(COMPILED, LABELS, {"sex": SEX})[1]
        for kind in (torch.tensor, list):
            batch = TensorRows(X, kind(LABELS), kind(cells)).take(np.array([3, 5]))
            assert batch.labels.tolist() == LABELS[[3, 5]].tolist()
            assert batch.cells.tolist() == cells[[3, 5]].tolist()

    def test_lengths_that_differ(self):
        with pytest.raises(InvalidInput, match="cells"):
            TensorRows(X, LABELS, np.zeros(3, dtype=np.int8))
