"""Grids, bins and the basis against direct definitions."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ratewise.data.table import read_features
from ratewise.preprocessing.basis import LazyBins, bin_offsets, bin_weights, build_basis, code_rows
from ratewise.preprocessing.grids import CategoricalGrid, ContinuousGrid, UnusedGrid
from ratewise.training.config import logarithmic_cells

BOUNDS = [(-3.0, 3.0), (0.0, 1.0), (5.0, 9.0), (-7.0, -2.0), (0.0, 1e9), (-1e-9, 1e-9)]


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("log_cells", [0, 16, 512])
@given(value=st.floats(allow_nan=True, allow_infinity=True))
def test_a_number_falls_into_the_bin_that_contains_it(bounds, log_cells, value):
    grid = ContinuousGrid("x", *bounds, log_cells=log_cells)
    (code,) = grid.code(np.array([value])).tolist()
    (same,) = grid.code_numbers(np.array([value])).tolist()
    assert code == same
    if math.isnan(value):
        assert code == grid.missing_bin
        return
    clipped = min(max(value, grid.lower), grid.upper)
    if clipped == grid.base:
        assert code == grid.n_intervals
        return
    points = [grid.lower, *grid.edges.tolist(), grid.upper]
    assert points[code] <= clipped <= points[code + 1]
    width = (grid.upper - grid.lower) / grid.equal_cells
    cell = min(int((clipped - grid.lower) / width), grid.equal_cells - 1)
    found = grid.families[0][0][code]
    assert found == cell or abs(clipped - grid.lower - width * max(found, cell)) <= 1e-9 * (width + abs(clipped))


@pytest.mark.parametrize("log_cells", [0, 64])
def test_a_row_is_in_one_cell_of_each_family(log_cells):
    grid = ContinuousGrid("x", -2.0, 5.0, log_cells=log_cells)
    for code in range(grid.n_bins):
        one = np.zeros(grid.n_bins)
        one[code] = 1.0
        counts = grid.histogram(one)
        assert len(counts) == grid.n_counts
        assert np.linalg.norm(counts) ** 2 <= grid.norm_squared + 1e-12
        assert counts[: grid.families[0][1]].sum() == 1.0
    assert grid.norm_squared == (2 if log_cells else 1)


def test_entries_of_the_wrong_kind_have_codes_of_their_own():
    grid = ContinuousGrid("x", 0.0, 1.0)
    assert grid.code([None, "abc", "0.5", [1]]).tolist()[:2] == [grid.missing_bin, grid.other_bin]
    assert grid.code(["0.5"]) == grid.code([0.5])
    kinds = CategoricalGrid("k", ("a", 2))
    assert kinds.code(["a", "2", 2.0, None, "b", [1]]).tolist() == [0, 1, 1, 3, 2, 2]
    assert UnusedGrid("u", "free text").code(["a", "b"]).tolist() == [0, 0]


def test_masked_numbers_are_missing():
    grid = ContinuousGrid("x", 0.0, 1.0)
    column = np.ma.masked_array([0.25, 0.5, 0.75], mask=[False, True, False])
    coded, _ = code_rows(read_features({"x": column}), (grid,), np.ones(3))
    assert coded[:, 0].tolist() == grid.code(column).tolist() == grid.code([0.25, None, 0.75]).tolist()


def test_many_categories_do_not_wrap_around():
    grid = CategoricalGrid("k", tuple(range(70_000)))
    assert grid.code([0, 69_999, 70_000, None]).tolist() == [0, 69_999, 70_000, 70_001]


def test_bins_of_a_table_in_memory_and_on_demand(tmp_path):
    rng = np.random.default_rng(0)
    values = rng.normal(size=(50, 3))
    values[3] = [np.nan, np.inf, -np.inf]
    path = tmp_path / "rows"
    values.tofile(path)
    mapped = read_features(np.memmap(path, dtype=float, mode="r", shape=values.shape))
    grids = (ContinuousGrid("x0", -1, 1), CategoricalGrid("x1", (0, 1)), ContinuousGrid("x2", 0, 2, log_cells=8))
    weights = rng.integers(0, 9, 50) / 8.0
    stored, in_memory = code_rows(read_features(values), grids, weights)
    rows = np.array([3, 7, 3, 49])
    assert np.array_equal(LazyBins(mapped, grids).take(rows), stored[rows])
    totals = bin_weights(LazyBins(mapped, grids), grids, weights.__getitem__, len(weights))
    for place, part in enumerate(totals):
        direct = np.zeros(grids[place].n_bins)
        np.add.at(direct, stored[:, place].astype(int) - bin_offsets(grids)[place], weights)
        assert np.array_equal(part, direct)
        assert np.array_equal(in_memory[place], direct)


def test_blocks_of_rows_have_the_codes_of_whole_columns(tmp_path):
    rng = np.random.default_rng(2)
    n = 40_001  # several blocks, and parts of a read from a map
    floats = rng.normal(size=(n, 3))
    floats[rng.random((n, 3)) < 0.1] = np.nan
    masked = np.ma.array(floats[:, 0], mask=rng.random(n) < 0.2)
    columns = (floats[:, 0], floats[:, 1].astype(np.float32), rng.integers(0, 9, n), masked, floats[:, 2])
    grids = tuple(ContinuousGrid(f"x{place}", -1, 2, log_cells=8) for place in range(len(columns)))
    weights = rng.integers(0, 9, n) / 8.0
    codes, totals = code_rows(read_features(dict(zip("abcde", columns, strict=True))), grids, weights)
    for place, (grid, column, first) in enumerate(zip(grids, columns, bin_offsets(grids)[:-1], strict=True)):
        expected = grid.code(column)
        assert np.array_equal(codes[:, place], expected + first)
        assert np.array_equal(totals[place], np.bincount(expected, weights, minlength=grid.n_bins))
    floats.tofile(tmp_path / "rows")
    mapped = read_features(np.memmap(tmp_path / "rows", dtype=float, mode="r", shape=floats.shape))
    stored, _ = code_rows(read_features(floats), grids[:3], weights)
    rows = rng.integers(0, n, n)
    assert np.array_equal(LazyBins(mapped, grids[:3]).take(rows), stored[rows])


def test_basis_of_released_histograms():
    """Features, centre and norms agree with the definition, column by column."""
    rng = np.random.default_rng(1)
    grids = (ContinuousGrid("x", -2, 3, log_cells=16), CategoricalGrid("k", ("a", "b", "c")), UnusedGrid("u", ""))
    histograms = [rng.normal(30, 20, grid.n_counts) for grid in grids]
    basis = build_basis(grids, histograms, 5.0, 400.0, 4.0)
    dense = basis.matrix.toarray() - basis.centre
    for start, stop, grid in zip(basis.offsets[:-1], basis.offsets[1:], grids, strict=True):
        own = np.flatnonzero(np.abs(basis.matrix.toarray()[start:stop]).sum(axis=0))
        norms = (dense[start:stop][:, own] ** 2).sum(axis=1) if len(own) else np.zeros(grid.n_bins)
        others = np.setdiff1d(np.flatnonzero(basis.centre), own)
        assert np.allclose(basis.squared_norms[start:stop], norms + _own_centre(basis, grids, start, own), atol=1e-9)
        assert not np.any(basis.matrix.toarray()[start:stop][:, others])
    shares = np.maximum(histograms[1], 0) / np.maximum(histograms[1], 0).sum()
    assert np.allclose(basis.shares[basis.offsets[1] : basis.offsets[2]], shares)
    assert np.isclose(basis.shares[: basis.offsets[1]].sum(), 1.0)
    bins = np.array([[5, 100], [basis.offsets[1], basis.offsets[1] + 4], [basis.offsets[2]] * 2])
    explicit = basis.matrix.toarray()[bins].sum(axis=0) - basis.centre
    assert np.allclose(basis.norms(bins.T), np.sqrt((explicit**2).sum(axis=1) + 1.0), rtol=1e-10)


def _own_centre(basis, grids, start, own):
    """Features of a column that no bin has still have a centre."""
    place = list(basis.offsets[:-1]).index(start)
    widths = [_features(grid) for grid in grids]
    first = sum(widths[:place])
    unseen = np.setdiff1d(np.arange(first, first + widths[place]), own)
    return float(np.square(basis.centre[unseen]).sum())


def _features(grid):
    if isinstance(grid, ContinuousGrid):
        return 1 + grid.n_counts
    return grid.n_bins if isinstance(grid, CategoricalGrid) else 0


def test_a_table_without_a_usable_column_has_a_basis():
    grids = (UnusedGrid("u", ""), UnusedGrid("v", ""))
    basis = build_basis(grids, [np.zeros(0), np.zeros(0)], 1.0, 100.0, 4.0)
    assert basis.n_features == 0
    assert np.allclose(basis.norms(np.zeros((2, 2), dtype=np.uint8)), 1.0)


@settings(max_examples=60, deadline=None)
@given(
    lower=st.floats(-1e12, 1e12),
    width=st.floats(1e-9, 1e12) | st.sampled_from([5e-324, 1e-310, 1e300]),
    log_cells=st.sampled_from([0, 64, 512]),
    seed=st.integers(0, 2**32 - 1),
)
def test_bins_are_those_of_a_binary_search(lower, width, log_cells, seed):
    """Also at the edges, beside them and beyond the bounds."""
    upper = lower + width
    assume(lower < upper)
    grid = ContinuousGrid("x", lower, upper, log_cells=log_cells)
    rng = np.random.default_rng(seed)
    edges = np.concatenate([grid.edges, [lower, upper, grid.base]])
    numbers = np.concatenate(
        [
            rng.uniform(0, 1, 300) * width + lower,
            edges,
            np.nextafter(edges, -np.inf),
            np.nextafter(edges, np.inf),
            [-np.inf, np.inf, 0.0, -0.0, 1e308, -1e308],
        ]
    )
    clipped = np.clip(numbers, lower, upper)
    expected = np.searchsorted(grid.edges, clipped, side="right")
    expected[clipped == grid.base] = grid.n_intervals
    np.testing.assert_array_equal(grid.code_numbers(numbers), expected)
    assert grid.code_numbers(np.array([np.nan]))[0] == grid.missing_bin


def test_the_deviation_of_a_heavy_tail_is_that_of_its_values():
    values = np.concatenate([np.zeros(5_000), np.random.default_rng(0).lognormal(3.0, 1.0, 5_000), [1e5]])
    grid = ContinuousGrid("x", 0.0, 1e5)
    histogram = grid.histogram(np.bincount(grid.code(values), minlength=grid.n_bins).astype(float))
    basis = build_basis((grid,), [histogram], 5.0, len(values), 4.0)
    number = basis.matrix[:, [0]].toarray().ravel()[grid.code(np.array([0.0, 30.0]))]
    expected = 30.0 / values[:-1].std()  # one value of 100,000 is below the noise
    assert number[1] - number[0] == pytest.approx(expected, rel=0.1)  # an equal cell alone has a deviation of 1,800


def test_cells_are_as_fine_as_noise_and_sample_allow():
    assert logarithmic_cells(400.0, 100_000, 1) == 0
    assert logarithmic_cells(4_000.0, 100_000, 1) == 64
    assert logarithmic_cells(1e6, 100_000, 5) == 512
    assert logarithmic_cells(1e6, 100_000, 20) == 128
    assert logarithmic_cells(1e6, 10_000, 5) == 200
    assert logarithmic_cells(1e6, 2_000, 5) == 64
