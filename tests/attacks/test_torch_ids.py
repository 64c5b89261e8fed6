"""Attack: an id with many rows, or with rows of extreme content, adds more to a network's releases than one unit may.

Whatever the rows of an id contain and however many there are, blanking all of them moves the clipped gradient sum by
at most the clip, the prediction counts by at most 1 in L1 norm, and changes nothing that other ids add.
"""

import numpy as np
import pytest
import torch
from torch import nn

from ratewise import Domain, demographic_parity
from ratewise.constraints.compiled import compile_constraints
from ratewise.data.table import code_table, id_units
from ratewise.torch import MLP, TensorRows, TorchRateConstrainedClassifier
from ratewise.torch.engine import Objective, TorchEngine
from ratewise.training.config import TrainingConfig

torch.set_num_threads(1)
IDS, MOST, CLIP = 40, 4, 0.3
COMPILED = compile_constraints(demographic_parity("g", max_gap=0.1), Domain((0, 1), {"g": (0, 1)}))
CONTENT = {
    "ordinary": lambda x: x,
    "the same row many times": lambda x: np.repeat(x[:1], len(x), axis=0),
    "rows that cancel": lambda x: x[0] * np.where(np.arange(len(x)) % 2, -1e9, 1e9)[:, None],
    "huge": lambda x: 1e30 * x,
    "not finite": lambda x: np.where(np.arange(x.size).reshape(x.shape) % 3 == 0, np.nan, np.inf),
}
NETWORKS = {
    "perceptron": lambda: MLP(5, 2, (16,)),
    "linear": lambda: nn.Linear(5, 2),
    "dropout": lambda: nn.Sequential(nn.Linear(5, 16), nn.Dropout(0.5), nn.Linear(16, 2)),
}


def table(content, seed=0):
    """Return inputs, labels, groups and ids; id 7 has nine rows of the given content, others have 0 to 6 rows."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 7, IDS)
    sizes[7] = 9
    ids = np.repeat(np.arange(IDS), sizes)
    x = rng.normal(size=(len(ids), 5))
    x[ids == 7] = content(x[ids == 7])
    return x.astype(np.float32), rng.integers(0, 2, len(ids)), rng.integers(0, 2, len(ids)), ids


def engine_of(network, x, labels, groups, ids, weighting, piece=64):
    torch.manual_seed(0)
    cells = code_table(COMPILED, labels, {"g": groups})[1]
    units = id_units(ids, IDS, MOST, weighting, labels >= 0)
    engine = TorchEngine(
        NETWORKS[network](),
        TensorRows(x, labels, cells),
        Objective(2, COMPILED.n_cells),
        units=units,
        physical_batch=piece,
    )
    engine.random_key = bytes(32)
    return engine


def released(engine, sample=None):
    weights = np.linspace(-3.0, 3.0, COMPILED.n_cells * 2).reshape(-1, 2)
    sample = np.arange(IDS) if sample is None else sample
    found = engine.sums(sample, None, weights, CLIP, step=0)
    return torch.cat([part.reshape(-1) for part in found.gradient]).numpy(), found.histogram


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("weighting", ["id", "row"])
@pytest.mark.parametrize("content", CONTENT)
@pytest.mark.filterwarnings("ignore:(overflow|invalid value):RuntimeWarning")
def test_an_id_moves_the_sums_by_at_most_the_bounds_of_one_unit(content, weighting, network):
    x, labels, groups, ids = table(CONTENT[content])
    blank = np.where(ids == 7, -1, labels)
    engine = engine_of(network, x, labels, groups, ids, weighting)
    gradient, histogram = released(engine)
    without, counted = released(engine_of(network, x, blank, groups, ids, weighting))
    assert np.isfinite(gradient).all()
    assert np.linalg.norm(gradient - without) <= CLIP * (1 + engine.slack(IDS * MOST))
    assert np.abs(histogram - counted).sum() <= 1.0
    by_cell, outcomes = engine.counts()
    fewer = engine_of(network, x, blank, groups, ids, weighting).counts()
    assert np.abs(by_cell - fewer[0]).sum() <= 1.0
    assert np.abs(outcomes - fewer[1]).sum() <= 1.0


def test_other_ids_add_the_same_bit_by_bit_whatever_an_id_has():
    """Without id 7 in the sample of sums: places of other ids do not move when an id loses its rows."""
    x, labels, groups, ids = table(CONTENT["ordinary"])
    blank = np.where(ids == 7, -1, labels)
    found = [engine_of("perceptron", x, codes, groups, ids, "id") for codes in (labels, blank)]
    for engine in found:
        engine.units.row_weights[ids == 7] = 0.0  # its rows are there, and add nothing
    np.testing.assert_array_equal(released(found[0])[0], released(found[1])[0])


@pytest.mark.parametrize("piece", [1, 3, 8, 1000])
def test_physical_batches_change_nothing_and_never_divide_an_id(piece):
    arguments = table(CONTENT["ordinary"])
    whole = released(engine_of("perceptron", *arguments, "id"))
    cut = released(engine_of("perceptron", *arguments, "id", piece))
    np.testing.assert_allclose(cut[0], whole[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(cut[1], whole[1])


def test_the_clip_bounds_an_id_and_not_its_rows():
    """Four equal rows of full weight: clipped row by row they would add four clips."""
    x, labels, groups, ids = table(CONTENT["the same row many times"])
    labels[ids == 7] = 1
    engine = engine_of("perceptron", 100 * x, labels, groups, ids, "id")
    engine.units.row_weights[:] = 1.0
    gradient, _ = released(engine, np.array([7]))
    assert 0.9 * CLIP < np.linalg.norm(gradient) <= CLIP * (1 + 1e-6)


def test_rows_that_make_the_module_fail_leave_the_other_rows_of_their_id():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(12, 2))
    ids_of_rows = np.repeat(np.arange(4), 3)
    words = torch.randint(0, 5, (12, 3))
    words[4] = torch.tensor([-7, 5, 2**40])
    units = id_units(ids_of_rows, 4, 3, "id")
    engine = TorchEngine(module, TensorRows(words, np.arange(12) % 2), Objective(2), units=units)
    whole = engine.sums(np.arange(4), clip=CLIP).gradient
    rest = engine.sums(np.array([0, 2, 3]), clip=CLIP).gradient
    gap = torch.cat([(a - b).reshape(-1) for a, b in zip(whole, rest, strict=True)]).norm()
    assert 0 < float(gap) <= CLIP * (1 + engine.slack(12))


def test_a_fit_shows_nothing_of_the_number_of_rows_of_an_id():
    def shown(content, rows):
        x, labels, groups, ids = table(CONTENT[content])
        keep = (ids != 7) | (np.cumsum(ids == 7) <= rows)
        model = TorchRateConstrainedClassifier(
            MLP(5, 2, (4,)),
            demographic_parity("g", max_gap=0.1),
            epsilon=3.0,
            delta=1e-3,
            classes=(0, 1),
            group_values={"g": (0, 1)},
            rows_per_id=3,
            config=TrainingConfig(steps=3),
            random_state=1,
        )
        model.fit(x[keep], labels[keep], sensitive_features={"g": groups[keep]}, privacy_ids=ids[keep])
        return model.plan_, model.ledger_.events(), str(model.privacy_), sorted(model.history_)

    expected = shown("ordinary", 9)
    assert shown("ordinary", 1) == expected
    assert shown("not finite", 5) == expected
