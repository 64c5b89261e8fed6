"""Rows that are kept by their distinct pieces are the same rows."""

import math

import numpy as np
import pytest
import scipy.sparse

from ratewise import centred, coded
from ratewise.coded import CodedRows, Coding, coding_for
from ratewise.features import Features
from ratewise.linear import LinearEngine
from ratewise.plan import Plan
from ratewise.scaling import Scaling

N_ROWS, LEVELS = 900, 12
SIZES = {"n_rows": 30_000, "most_rows": 16_000, "block_rows": 32_768}


def table(rng, odd=False):
    """Return two numbers around one-hot columns of three categories, some of them not 0 or 1 if `odd`."""
    flags = [np.eye(LEVELS)[rng.integers(0, LEVELS, N_ROWS)] for _ in range(3)]
    rows = np.column_stack([rng.normal(40, 9, N_ROWS), *flags, rng.normal(size=N_ROWS)])
    if odd:
        rows[::7, 5], rows[3, 30], rows[4, 31] = 0.25, 1e-300, 1e-9
    return rows


def coding(whole=False, groups=((1, 20), (20, 37))):
    """Return how to code such a table."""
    return Coding(np.array([0, 37]), [np.arange(*group) for group in groups], 38, whole)


def code(how, rows, blocks=3):
    """Return the rows, coded in several blocks."""
    read = [how.read(block) for block in np.array_split(rows, blocks)]
    return how.rows(read, lambda some, places: scipy.sparse.csr_array(rows[some][:, places]))


class TestProducts:
    @pytest.mark.parametrize("whole", [False, True])
    @pytest.mark.parametrize("odd", [False, True])
    def test_both_are_those_of_the_rows(self, whole, odd):
        rng = np.random.default_rng(1)
        rows = table(rng, odd)
        kept = code(coding(whole), rows)
        weights = rng.normal(size=38)
        np.testing.assert_allclose(kept.dot(weights), rows @ weights, atol=1e-11)
        for some in (np.flatnonzero(rng.random(N_ROWS) < 0.4), np.array([17]), np.array([], dtype=np.intp)):
            residual = rng.normal(size=len(some))
            np.testing.assert_allclose(kept[some].dot(weights), rows[some] @ weights, atol=1e-11)
            np.testing.assert_allclose(kept[some].T.dot(residual), rows[some].T @ residual, atol=1e-10)
        residual = rng.normal(size=N_ROWS)
        np.testing.assert_allclose(kept.T.dot(residual), rows.T @ residual, atol=1e-10)

    @pytest.mark.parametrize("whole", [False, True])
    def test_a_margin_does_not_depend_on_the_rows_beside(self, whole):
        """Neither on those of the batch nor on those of the table, to the last bit."""
        rng = np.random.default_rng(2)
        rows, weights = np.hstack([table(rng, odd=True), rng.normal(size=(N_ROWS, 9))]), rng.normal(size=47)
        how = Coding(np.r_[0, 37:47], coding().groups, 47, whole)
        together = code(how, rows).dot(weights)
        for count in (1, 2, 3, 5, 8, 13, 64, 100, 701):
            some = np.sort(rng.choice(N_ROWS, count, replace=False))
            np.testing.assert_array_equal(code(how, rows)[some].dot(weights), together[some])
            np.testing.assert_array_equal(code(how, rows[some], 1).dot(weights), together[some])

    def test_rows_that_are_not_meant_add_nothing(self):
        rows = table(np.random.default_rng(3))
        rows[5] = 1e300  # would be seen, times whatever is not exactly zero
        kept = code(coding(whole=True), np.clip(rows, None, np.r_[1e300, np.ones(36), 1e300]))
        some = np.delete(np.arange(N_ROWS), 5)
        expected = rows[some].sum(axis=0)
        np.testing.assert_allclose(kept[some].T.dot(np.ones(N_ROWS - 1)), expected, rtol=1e-12)
        assert not kept[some].T.dot(np.zeros(N_ROWS - 1)).any()

    def test_sums_are_as_exact_as_the_slack_says(self):
        rng = np.random.default_rng(4)
        rows = table(rng, odd=True)
        some, kept = np.arange(0, N_ROWS, 2), code(coding(), rows)
        residual = rng.normal(size=len(some)) * 10.0 ** rng.integers(-8, 8, len(some))
        found = kept[some].T.dot(residual)
        for column in range(38):
            terms = rows[some, column] * residual
            error = abs(found[column] - math.fsum(terms))
            assert error <= (len(some) + 4) * 2.0**-53 * math.fsum(abs(terms)), column


class TestPieces:
    def test_each_is_kept_once(self):
        rows = table(np.random.default_rng(5))
        kept = code(coding(), rows)
        distinct = [len(np.unique(rows[:, places], axis=0)) for places in coding().groups]
        assert kept.pieces.shape == (sum(distinct), 38)
        assert [len(set(codes.tolist())) for codes in kept.codes] == distinct
        np.testing.assert_array_equal(kept.numbers, rows[:, [0, 37]].T)

    def test_a_row_with_other_values_has_pieces_of_its_own(self):
        """One such row leads to no more than one piece in each group: a clock would tell of more."""
        rows = table(np.random.default_rng(6))
        before = code(coding(), rows)
        rows[3, [5, 30]] = 0.5
        after = code(coding(), rows)
        assert after.pieces.shape[0] <= before.pieces.shape[0] + 2
        np.testing.assert_array_equal(after.dot(np.arange(38.0))[4:], before.dot(np.arange(38.0))[4:])

    def test_groups_of_more_columns_than_a_number_can_tell(self):
        rng = np.random.default_rng(7)
        rows = (rng.random((400, 150)) < 0.02).astype(float)
        rows[9, 60] = rows[200, 149] = 0.5
        rows[10:20] = rows[20:30]
        rows[10, [0, 149]] = 1.0 - rows[10, [0, 149]]  # differs from its like in the first and the last key
        how = Coding(np.array([], dtype=np.intp), [np.arange(150)], 150, False)
        kept = code(how, rows)
        assert kept.pieces.shape[0] == len(np.unique(rows, axis=0))
        np.testing.assert_array_equal(kept.pieces.toarray()[kept.codes[0]], rows)

    def test_columns_at_either_end_of_a_group_are_told_apart(self):
        """A sum of powers of two that is not exact would lose the first beside the last."""
        rows = np.zeros((4, 64))
        rows[2:, 63] = rows[1::2, 0] = 1.0
        for width in (52, 53, 54, 55, 56, 60, 64):
            how = Coding(np.array([], dtype=np.intp), [np.arange(64 - width, 64)], 64, False)
            some = rows.copy()
            some[1::2, 64 - width] = 1.0
            kept = code(how, some, 1)
            assert len(set(kept.codes[0].tolist())) == 4, width

    def test_joined_keys_tell_what_each_of_them_tells(self):
        first, second = (grid.ravel() for grid in np.meshgrid([0, 5, 2**51], [0, 1, 7, 2**50]))
        assert len(set(coded._joined([first, second]).tolist())) == 12
        with_others = coded._joined([np.array([3, 3, -1, 3, -1]), np.array([-1, 4, 0, 4, 0])])
        assert with_others[1] == with_others[3] >= 0
        assert len(set(with_others[[0, 2, 4]].tolist())) == 3
        assert all(with_others[[0, 2, 4]] < 0)


class TestWhatIsCoded:
    def test_columns_go_together_in_their_order(self):
        category = np.arange(100) % 10 != 0
        found = coding_for(np.full(100, 0.25), category, reads=100.0, **SIZES)
        np.testing.assert_array_equal(found.numbers, np.arange(0, 100, 10))
        np.testing.assert_array_equal(np.concatenate(found.groups), np.flatnonzero(category))
        tells = -0.25 * math.log2(0.25) - 0.75 * math.log2(0.75)
        assert all(9.0 < len(group) * tells < 13.0 for group in found.groups)

    def test_not_where_it_would_not_pay(self):
        mean, category = np.full(100, 0.25), np.ones(100, dtype=bool)
        assert coding_for(mean, category, reads=100.0, **SIZES) is not None
        assert coding_for(mean, category, reads=10.0, **SIZES) is None
        assert coding_for(mean, ~category, reads=100.0, **SIZES) is None
        assert coding_for(mean / 2, category, reads=100.0, **SIZES) is None

    def test_all_rows_are_multiplied_where_a_step_reads_many_at_once(self):
        mean, category = np.full(100, 0.25), np.ones(100, dtype=bool)
        for changes, whole in (({}, True), ({"n_rows": 60_000}, False), ({"block_rows": 8192}, False)):
            assert coding_for(mean, category, reads=100.0, **(SIZES | changes)).whole is whole

    @pytest.mark.parametrize("mean", [0.0, 1.0, -0.2, 1.2])
    def test_means_beyond_what_is_possible(self, mean):
        """Noise leads there."""
        means = np.r_[np.full(40, mean), np.full(60, 0.25)]
        found = coding_for(means, np.ones(100, dtype=bool), reads=100.0, **SIZES)
        assert sum(map(len, found.groups)) == 100


@pytest.fixture
def small_tables(monkeypatch):
    """Let small tables be kept so, too."""
    monkeypatch.setattr(centred, "_SPARSE_ENTRIES", 1)
    monkeypatch.setattr(coded, "_CATEGORIES", 0.0)


def scaling(rows, **changes):
    """Return what released moments without noise would lead to."""
    lower, upper = np.zeros(38), np.ones(38)
    lower[[0, 37]], upper[[0, 37]] = [20.0, -2.0], [60.0, 2.0]
    unit = (np.clip(rows, lower, upper) - lower) / (upper - lower)
    extra = len(changes.get("curved", ()))
    mean = np.r_[unit.mean(axis=0), np.full(extra, 0.5)]
    deviation = np.r_[unit.std(axis=0), np.full(extra, 0.5)]  # curves, which pass for flags by these
    return Scaling(lower, upper, mean=mean, deviation=deviation, **changes)


def engine(rows, prepared, n_classes=2, **changes):
    plan = Plan(
        n_rows=len(rows), sampling_rate=0.5, clip=2.0, gradient_noise=1.0, **({"steps": 100} | changes)
    )
    return LinearEngine(plan, rows, np.arange(len(rows)) % 2, n_classes, scaling=prepared)


@pytest.mark.usefixtures("small_tables")
class TestEngine:
    @pytest.mark.parametrize("whole", [0.0, 2.0])
    @pytest.mark.parametrize("changes", [{}, {"row_norm": 3.0}, {"block_rows": 100}])
    @pytest.mark.parametrize("dtype", [np.float64, np.float32])
    def test_sums_are_those_of_dense_rows(self, monkeypatch, whole, changes, dtype):
        rows = table(np.random.default_rng(8), odd=True)
        prepared = scaling(rows, curved=np.array([0, 37]))
        rows = rows.astype(dtype)
        monkeypatch.setattr(coded, "_WHOLE_SHARE", whole)
        kept = engine(rows, prepared, **changes)
        monkeypatch.setattr(centred, "_SPARSE_ENTRIES", 1e9)
        dense = engine(rows, prepared, **changes)
        assert dense.features._centred is None
        assert isinstance(kept.features._centred.entries, CodedRows)
        theta = np.random.default_rng(9).normal(size=dense.n_parameters)
        batch = np.arange(0, N_ROWS, 2)
        expected = dense.sums(batch, theta, None)[0]
        np.testing.assert_allclose(kept.sums(batch, theta, None)[0], expected, rtol=1e-9, atol=1e-9)

    def test_curves_are_numbers_whatever_is_released_of_them(self):
        rows = table(np.random.default_rng(10))
        kept = engine(rows, scaling(rows, curved=np.array([0, 37]))).features._centred.entries
        assert {0, 37, 38, 39} <= set(kept.places.tolist())
        assert kept.pieces.shape[0] < 200

    def test_not_for_more_classes_nor_few_reads_nor_without_bounds(self):
        rows = table(np.random.default_rng(11))
        forms = [
            engine(rows, scaling(rows), n_classes=3),
            engine(rows, scaling(rows), steps=20),
            engine(
                np.abs(rows) * (rows <= 1.0), Scaling(mean=np.full(38, 0.08), deviation=np.full(38, 0.27))
            ),
        ]
        for form in forms:
            assert isinstance(form.features._centred.entries, scipy.sparse.csr_array)

    def test_the_rows_themselves_are_not_asked(self):
        """A neighbour's groups are the same: only sizes, bounds and released numbers decide."""
        rows = table(np.random.default_rng(12))
        prepared = scaling(rows)
        found = [
            Features(x, clip=1.0, scaling=prepared, reads=100.0, most_rows=3e4)._centred.entries
            for x in (rows, np.full_like(rows, 0.5))
        ]
        np.testing.assert_array_equal(found[0].places, found[1].places)
        assert found[0].codes.shape == found[1].codes.shape
