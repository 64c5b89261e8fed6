"""Units of privacy against direct definitions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratewise.data.table import code_ids, id_units, row_units
from ratewise.mechanisms.noise import NoNoise, RoundedGaussianMechanism
from ratewise.preprocessing.discovery import rows_per_id, size_histogram


@st.composite
def people(draw):
    codes = np.array(draw(st.lists(st.integers(0, 7), min_size=1, max_size=40)))
    usable = np.array(draw(st.lists(st.booleans(), min_size=len(codes), max_size=len(codes))))
    return codes, usable


@given(people(), st.integers(1, 5), st.sampled_from(["id", "row"]), st.integers(1, 7))
def test_a_unit_has_its_first_usable_rows(data, max_rows, weighting, at_once):
    codes, usable = data
    units = id_units(codes, 8, max_rows, weighting, usable)
    weights = units.table_weights(usable)
    for unit in range(8):
        wanted = np.flatnonzero((codes == unit) & usable)[:max_rows]
        rows = [row for found, _ in units.blocks(np.array([unit]), at_once) for row in found]
        assert rows == wanted.tolist()
        assert weights[codes == unit].sum() <= 1.0
        share = 1.0 / (len(wanted) if weighting == "id" else max_rows) if len(wanted) else 0.0
        assert np.allclose(weights[wanted], share, atol=2.0**-20)
        unused = np.setdiff1d(np.flatnonzero(codes == unit), wanted)
        assert not weights[unused].any()
    assert np.array_equal(np.rint(weights / units.step) * units.step, weights)


@given(people(), st.integers(1, 5), st.integers(1, 50), st.lists(st.integers(0, 7), unique=True, max_size=8))
def test_blocks_hold_every_row_of_a_sample_once(data, max_rows, at_once, sample):
    codes, usable = data
    units = id_units(codes, 8, max_rows, "id", usable)
    chosen = np.array(sorted(sample), dtype=np.intp)
    seen, owners = [], []
    for rows, starts in units.blocks(chosen, at_once):
        seen += rows.tolist()
        sizes = np.diff(np.append(starts, len(rows)))
        assert np.all(sizes >= 0)
        for start, size in zip(starts, sizes, strict=True):
            assert len(set(codes[rows[start : start + size]])) <= 1
        owners += codes[rows].tolist()
    wanted = [row for unit in chosen for row in np.flatnonzero((codes == unit) & usable)[:max_rows]]
    assert sorted(seen) == sorted(wanted)


def test_rows_are_units():
    units = row_units(10)
    found = [rows.tolist() for rows, starts in units.blocks(np.arange(0, 10, 2), 2)]
    assert found == [[0, 4 // 2], [4, 6], [8]]
    usable = np.arange(10) < 3
    assert units.table_weights(usable).tolist() == usable.astype(float).tolist()


def test_ids_of_every_kind():
    codes, count = code_ids(["a", " a ", None, "", float("nan"), 1, "1.0", True, [1], {}])
    same = codes[:, None] == codes[None, :]
    assert same[0, 1]
    assert same[2, 3]
    assert same[3, 4]
    assert same[5, 6]
    assert same[8, 9]
    assert not same[0, 5]
    assert count == 4


def test_units_do_not_depend_on_the_order_of_rows():
    ids = np.random.default_rng(0).integers(0, 20, 100)
    order = np.random.default_rng(1).permutation(100)
    assert np.array_equal(code_ids(ids)[0][order], code_ids(ids[order])[0])


@pytest.mark.parametrize("sizes", [[1] * 50, [3] * 50, [1] * 30 + [16] * 20, [0] * 5])
def test_rows_per_id_covers_most_ids(sizes):
    found = rows_per_id(size_histogram(np.array(sizes)), NoNoise(), np.random.default_rng(0))
    covered = np.mean([size <= found for size in sizes])
    assert covered >= 0.9 or not any(sizes)
    noisy = rows_per_id(
        size_histogram(np.array(sizes * 100)), RoundedGaussianMechanism(3.0, whole=True), np.random.default_rng(0)
    )
    assert noisy == found


@pytest.mark.parametrize(("ids", "most"), [(42, 1), (1000, 256)])
def test_noise_never_gives_ids_more_rows_than_they_have(ids, most):
    """At epsilon 1 the noise is 37: it hides 42 ids, and no empty cell looks occupied."""
    histogram, rng = size_histogram(np.full(ids, 140)), np.random.default_rng(0)
    mechanism = RoundedGaussianMechanism(37.0, whole=True)
    found = [rows_per_id(histogram, mechanism, rng) for _ in range(1000)]
    assert np.mean(np.array(found) > 256) <= 0.005
    assert np.median(found) == most


def test_an_id_adds_one_to_the_histogram_of_sizes():
    for size in (1, 2, 3, 1000, 10**9):
        assert size_histogram(np.array([size])).sum() == 1.0
    assert size_histogram(np.array([0])).sum() == 0.0
