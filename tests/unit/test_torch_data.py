"""Rows for networks: from memory, from data sets, from mapped shards and Parquet files."""

import numpy as np
import pytest
import torch

from ratewise import Domain, demographic_parity
from ratewise.accounting import PrivacyUnit, TrainingEvent
from ratewise.constraints.compiler import compile_constraints
from ratewise.exceptions import InvalidInput, InvalidType
from ratewise.torch import (
    MLP,
    DatasetRows,
    ShardedRows,
    TensorRows,
    Trainer,
    shards_from_parquet,
    share_of,
)
from ratewise.training.plan import TRAINING, Plan

torch.set_num_threads(1)
rng = np.random.default_rng(0)
N, D = 90, 3
X = rng.normal(size=(N, D)).astype(np.float32)
Y = rng.choice(["no", "yes"], N)
SEX = rng.choice(["F", "M"], N)
DOMAIN = Domain(("no", "yes"), {"sex": ("F", "M")})
COMPILED = compile_constraints(demographic_parity("sex", max_gap=0.1), DOMAIN)
LABELS = DOMAIN.code_labels(Y)
EVENT = TrainingEvent(0.3, 5, 1.0, 1.0)
PLAN = Plan(N, 0.3, 5, {TRAINING: EVENT}, PrivacyUnit(), "zero_out", float("inf"), 1e-5)
MEMORY = TensorRows(X, LABELS, COMPILED.cells(LABELS, {"sex": SEX}))


@pytest.fixture
def shards(tmp_path):
    folders = []
    for number, (start, stop) in enumerate([(0, 20), (20, 21), (21, 90)]):
        folder = tmp_path / f"part{number}"
        folder.mkdir()
        for name, values in (("x", X), ("y", Y), ("sex", SEX)):
            np.save(folder / f"{name}.npy", values[start:stop])
        folders.append(folder)
    return folders


def same(batch, other):
    assert torch.equal(batch.x, other.x)
    assert torch.equal(batch.labels, other.labels)
    assert torch.equal(batch.cells, other.cells)


class TestShards:
    @pytest.mark.parametrize("rows", [[], [0], [19, 20, 21], [20], [3, 50, 89], list(range(N))])
    def test_rows_are_those_of_one_table(self, shards, rows):
        rows = np.array(rows, dtype=np.intp)
        same(ShardedRows(shards, DOMAIN, COMPILED).take(rows), MEMORY.take(rows))

    def test_process_with_its_own_shards(self, shards):
        source = ShardedRows(shards[1:], DOMAIN, COMPILED, first=20, n_rows=N)
        assert source.n_rows == N
        same(source.take(np.array([20, 40])), MEMORY.take(np.array([20, 40])))
        with pytest.raises(InvalidInput, match="holds rows 20 to 89"):
            source.take(np.array([19, 40]))
        assert list(share_of(N, 1, 2)) == list(range(45, 90))

    def test_trains_as_from_memory(self, shards):
        found = []
        for source in (MEMORY, ShardedRows(shards, DOMAIN, COMPILED)):
            torch.manual_seed(0)
            trainer = Trainer(MLP(D, 2, (4,)), source, PLAN, COMPILED, random_state=0)
            trainer.run()
            found.append(torch.cat([p.reshape(-1) for p in trainer.module.parameters()]))
        assert torch.equal(*found)

    def test_files_are_mapped_and_never_read_as_a_whole(self, shards):
        source = ShardedRows(shards, DOMAIN, COMPILED)
        assert all(isinstance(array, np.memmap) for shard in source._shards for array in shard.values())

    def test_missing_groups_or_rows(self, shards):
        (shards[1] / "sex.npy").unlink()
        with pytest.raises(InvalidInput, match="groups are missing"):
            ShardedRows(shards, DOMAIN, COMPILED)
        np.save(shards[1] / "sex.npy", SEX[:5])
        with pytest.raises(InvalidInput, match="5 rows"):
            ShardedRows(shards, DOMAIN, COMPILED)
        with pytest.raises(InvalidInput, match="empty"):
            ShardedRows([], DOMAIN)
        with pytest.raises(InvalidInput, match="more than n_rows"):
            ShardedRows(shards[:1], DOMAIN, n_rows=10)

    def test_pickled_arrays_are_not_executed(self, shards):
        np.save(shards[0] / "y.npy", np.array([{"a": 1}] * 20, dtype=object), allow_pickle=True)
        with pytest.raises(InvalidInput, match="mapped"):
            ShardedRows(shards, DOMAIN)

    def test_parquet_becomes_shards(self, tmp_path):
        import pyarrow as pa
        from pyarrow import parquet

        columns = {f"f{i}": X[:, i] for i in range(D)}
        for number, (start, stop) in enumerate([(0, 50), (50, 90)]):
            part = {name: values[start:stop] for name, values in {**columns, "sex": SEX, "y": Y}.items()}
            parquet.write_table(pa.table(part), tmp_path / f"{number}.parquet")
        files = sorted(tmp_path.glob("*.parquet"))
        folders = shards_from_parquet(
            files, tmp_path / "out", features=list(columns), label="y", groups=["sex"], batch_rows=7
        )
        assert len(folders) == 2
        rows = np.array([0, 49, 50, 89])
        same(ShardedRows(folders, DOMAIN, COMPILED).take(rows), MEMORY.take(rows))


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
        codes = {"labels": LABELS, "cells": COMPILED.cells(LABELS, {"sex": SEX})}
        codes[place] = codes[place].astype(np.float64)
        with pytest.raises(InvalidType, match=f"{place} must be whole numbers from 0"):
            Trainer(MLP(3, 2), TensorRows(X, **codes), PLAN, COMPILED)

    def test_numbers_in_tensors_and_lists(self):
        cells = COMPILED.cells(LABELS, {"sex": SEX})
        for kind in (torch.tensor, list):
            batch = TensorRows(X, kind(LABELS), kind(cells)).take(np.array([3, 5]))
            assert batch.labels.tolist() == LABELS[[3, 5]].tolist()
            assert batch.cells.tolist() == cells[[3, 5]].tolist()

    def test_lengths_that_differ(self):
        with pytest.raises(InvalidInput, match="cells"):
            TensorRows(X, LABELS, np.zeros(3, dtype=np.int8))
