"""Classes and cells of rows, held or worked out batch by batch: the same numbers, and no memory per row."""

import tracemalloc

import numpy as np
import pandas as pd
import pytest

from ratewise import Domain, RateConstrainedClassifier, equalized_odds
from ratewise.coding import CellCodes, LabelCodes, counts, held
from ratewise.exceptions import InvalidInput
from ratewise.partition import compile_constraints

DOMAIN = Domain(("no", "yes"), {"sex": ("F", "M"), "town": (1, 2, 3)})
ODDS = equalized_odds("sex", "town", max_gap=0.1)


def rows(n, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.choice(["no", "yes"], n)
    return labels, {"sex": rng.choice(["F", "M"], n), "town": rng.integers(1, 4, n)}


@pytest.mark.parametrize("categorical", [False, True])
def test_what_is_worked_out_is_what_is_held(categorical):
    labels, columns = rows(70_000)
    if categorical:
        columns["sex"] = pd.Series(columns["sex"]).astype("category")
    compiled = compile_constraints(ODDS, DOMAIN)
    lazy = CellCodes(compiled, LabelCodes(DOMAIN, labels), columns)
    whole = compiled.cells(DOMAIN.label_codes(labels), columns)
    some = np.array([69_999, 3, 3, 0])
    np.testing.assert_array_equal(lazy.take(some), whole[some])
    np.testing.assert_array_equal(held(lazy, compiled.n_cells), whole)
    np.testing.assert_array_equal(counts(lazy, compiled.n_cells), np.bincount(whole))
    assert held(lazy, compiled.n_cells).itemsize == 1


def mapped(folder, n):
    """Return features, labels and groups that live in files."""
    rng = np.random.default_rng(1)
    arrays = {
        "x": rng.normal(size=(n, 2)).astype(np.float32),
        "y": rng.integers(0, 2, n, dtype=np.int8),
        "g": rng.integers(0, 3, n, dtype=np.int8),
    }
    for name, array in arrays.items():
        np.save(folder / f"{name}{n}.npy", array)
    return [np.load(folder / f"{name}{n}.npy", mmap_mode="r") for name in arrays]


def classifier(**changes):
    public = {"classes": (0, 1), "group_values": {"g": (0, 1, 2)}}
    return RateConstrainedClassifier(equalized_odds("g", max_gap=0.1), random_state=0, **public, **changes)


def test_memory_does_not_grow_with_mapped_rows(tmp_path):
    peaks = []
    sizes = 200_000, 2_000_000
    for n in sizes:
        x, y, g = mapped(tmp_path, n)
        model = classifier(epsilon=None, steps=3, sampling_rate=20_000 / n)
        tracemalloc.start()
        model.fit(x, y, sensitive_features={"g": g})
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 0.25 * (sizes[1] - sizes[0])  # codes of one byte a row would be 1.8 MB


def test_mapped_and_held_rows_train_the_same_model(tmp_path):
    x, y, g = mapped(tmp_path, 5000)
    on_disk = classifier(steps=10).fit(x, y, sensitive_features={"g": g})
    in_memory = classifier(steps=10).fit(np.array(x), np.array(y), sensitive_features={"g": np.array(g)})
    np.testing.assert_allclose(on_disk.coef_, in_memory.coef_, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(on_disk.history_["histogram"][0], in_memory.history_["histogram"][0])


def test_mapped_rows_are_checked_before_any_step(tmp_path):
    x, y, g = mapped(tmp_path, 100_000)
    wrong = np.array(g)
    wrong[-1] = 7
    with pytest.raises(InvalidInput, match="column 'g': some entries are missing or not declared"):
        classifier().fit(x, y, sensitive_features={"g": wrong})
