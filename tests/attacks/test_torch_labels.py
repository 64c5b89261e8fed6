"""One item's label or group, whatever it is, changes the codes of that item only."""

import numpy as np
import pytest
import torch

from ratewise import demographic_parity
from ratewise.constraints.compiled import compile_constraints
from ratewise.constraints.domain import Domain
from ratewise.torch import DatasetRows

ODD = ["abc", "True", "1.00", 1.5, None, [1, 2], {"a": 1}, b"1", float("nan"), 10**400, True, "x" * 10_000]


class Items(torch.utils.data.Dataset):
    """Rows with whole numbers as labels and groups, but for the first."""

    def __init__(self, label=0, group=0):
        self.label, self.group = label, group

    def __len__(self):
        return 40

    def __getitem__(self, row):
        if row == 0:
            return torch.zeros(3), self.label, {"g": self.group}
        return torch.ones(3), row % 2, {"g": row % 3}


def codes(items):
    domain = Domain((0, 1), {"g": (0, 1, 2)}, other=True)
    compiled = compile_constraints([demographic_parity("g", max_gap=0.1)], domain)
    batch = DatasetRows(items, domain, compiled).take(np.arange(40))
    return batch.labels[1:].tolist(), batch.cells[1:].tolist()


@pytest.mark.parametrize("odd", ODD, ids=[type(odd).__name__ + str(place) for place, odd in enumerate(ODD)])
@pytest.mark.parametrize("where", ["label", "group"])
def test_other_rows_keep_their_codes(odd, where):
    expected = codes(Items())
    assert expected[0] == [row % 2 for row in range(1, 40)]
    assert codes(Items(**{where: odd})) == expected
