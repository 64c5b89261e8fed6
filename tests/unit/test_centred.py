"""Rows that are kept without their zeros are the same rows."""

from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from ratewise import features as features_module
from ratewise.centred import CentredRows, block_rows_for, stored_share
from ratewise.exceptions import InvalidInput
from ratewise.features import Features, Scaling
from ratewise.linear import LinearEngine
from ratewise.mechanisms import CENTRING_SLACK, summation_slack
from ratewise.plan import Plan

N_ROWS, LEVELS = 4000, 12
LABELS = np.arange(N_ROWS) % 2


def table(rng=None):
    """Return one-hot columns of two categories, and an age: a table as people have it, and its bounds."""
    rng = np.random.default_rng(0) if rng is None else rng
    first, second = (np.eye(LEVELS)[rng.integers(0, LEVELS, N_ROWS)] for _ in range(2))
    rows = np.column_stack([first, second, rng.uniform(15, 95, N_ROWS)])
    lower, upper = np.zeros(rows.shape[1]), np.ones(rows.shape[1])
    lower[-1], upper[-1] = 17.0, 90.0
    return rows, lower, upper


def standardising(rows, lower, upper, **changes):
    """Return the scaling that released moments without noise would give."""
    unit = (np.clip(rows, lower, upper) - lower) / (upper - lower)
    return Scaling(lower, upper, mean=unit.mean(axis=0), deviation=unit.std(axis=0), **changes)


@pytest.fixture
def small_tables(monkeypatch):
    """Let small tables be kept so, too."""
    monkeypatch.setattr(features_module, "_SPARSE_ENTRIES", 1)


def engine(rows, scaling, n_classes=2, **changes):
    plan = Plan(
        n_rows=len(rows),
        sampling_rate=0.5,
        steps=20,
        clip=2.0,
        gradient_noise=1.0,
        histogram_noise=1.0,
        **changes,
    )
    return LinearEngine(plan, rows, LABELS, n_classes, cells=LABELS, n_cells=2, scaling=scaling)


class TestProducts:
    @pytest.mark.parametrize("n_columns", [None, 3])
    def test_both_products_are_those_of_the_rows(self, n_columns):
        rng = np.random.default_rng(1)
        entries = scipy.sparse.random_array((50, 7), density=0.2, rng=rng, format="csr")
        shift, factor = rng.normal(size=7), rng.uniform(0.1, 9.0, 7)
        rows = CentredRows(entries, shift, factor)
        dense = factor * (entries.toarray() - shift)
        shape = () if n_columns is None else (n_columns,)
        weights, residual = rng.normal(size=(7, *shape)), rng.normal(size=(50, *shape))
        np.testing.assert_allclose(rows.dot(weights), dense @ weights, atol=1e-12)
        np.testing.assert_allclose(rows.T.dot(residual), dense.T @ residual, atol=1e-12)
        some = np.array([3, 4, 40])
        np.testing.assert_allclose(rows.take(some).dot(weights), dense[some] @ weights, atol=1e-12)

    def test_a_margin_does_not_depend_on_the_rows_beside(self):
        """Else a row that comes or goes would change the others' gradients a little."""
        rng = np.random.default_rng(2)
        entries = scipy.sparse.random_array((300, 40), density=0.3, rng=rng, format="csr")
        rows = CentredRows(entries, rng.normal(size=40), rng.uniform(0.1, 9.0, 40))
        weights = rng.normal(size=40)
        together = rows.dot(weights)
        for row in range(0, 300, 17):
            assert rows.take(np.array([row])).dot(weights)[0] == together[row]


class TestSums:
    @pytest.mark.parametrize("n_classes", [2, 3])
    @pytest.mark.parametrize("row_norm", [None, 3.0])
    @pytest.mark.parametrize("dtype", [np.float64, np.float32])
    def test_they_are_those_of_dense_rows(self, monkeypatch, n_classes, row_norm, dtype):
        rows, lower, upper = table()
        scaling = standardising(rows, lower, upper)
        rows = rows.astype(dtype)
        dense = engine(rows, scaling, n_classes, row_norm=row_norm)
        monkeypatch.setattr(features_module, "_SPARSE_ENTRIES", 1)
        kept = engine(rows, scaling, n_classes, row_norm=row_norm)
        assert kept.features._centred is not None
        assert dense.features._centred is None
        assert kept.features._centred.entries.nnz <= 3 * N_ROWS
        rng = np.random.default_rng(3)
        theta, push = rng.normal(size=dense.n_parameters), rng.normal(size=(2, n_classes))
        batch = np.flatnonzero(rng.random(N_ROWS) < 0.5)
        sums, tally = dense.sums(batch, theta, push)
        found, counted = kept.sums(batch, theta, push)
        np.testing.assert_allclose(found, sums, rtol=1e-9, atol=1e-9)
        np.testing.assert_array_equal(kept.histograms([counted]), dense.histograms([tally]))

    @pytest.mark.usefixtures("small_tables")
    def test_blocks_of_any_size(self):
        rows, lower, upper = table()
        scaling = standardising(rows, lower, upper)
        theta, batch = np.linspace(-1, 1, rows.shape[1] + 1), np.arange(0, N_ROWS, 3)
        whole, blocks = engine(rows, scaling), engine(rows, scaling, block_rows=100)
        assert blocks.features.block_rows == 100
        assert whole.features.block_rows > N_ROWS
        np.testing.assert_allclose(whole.sums(batch, theta, None)[0], blocks.sums(batch, theta, None)[0])

    @pytest.mark.usefixtures("small_tables")
    def test_the_rows_given_are_left_alone(self):
        rows, lower, upper = table()
        before = rows.copy()
        engine(rows, standardising(rows, lower, upper)).sums(np.arange(50), np.ones(26), None)
        np.testing.assert_array_equal(rows, before)

    @pytest.mark.usefixtures("small_tables")
    @pytest.mark.parametrize("bad", [np.nan, np.inf])
    def test_what_is_not_finite_is_refused(self, bad):
        rows, lower, upper = table()
        scaling = standardising(rows, lower, upper)
        rows[77, 3] = bad
        with pytest.raises(InvalidInput, match="NaN or infinity"):
            engine(rows, scaling)


class TestWhichRowsAreKeptSo:
    def form(self, rows, scaling, **changes):
        options = {"clip": 1.0, "reads": 100.0, "most_rows": 1e5} | changes
        return Features(rows, scaling=scaling, **options)._centred

    def test_tables_of_categories(self):
        rows, lower, upper = table()
        assert self.form(rows, standardising(rows, lower, upper), most_rows=3e4) is not None

    def test_not_where_it_would_not_pay_or_not_be_sound(self):
        rows, lower, upper = table()
        scaling = standardising(rows, lower, upper)
        few = {"most_rows": 512.0}, {"reads": 2.0}
        unsound = {"intercept": False}, {"most_rows": 1e9}
        for changes in (*few, *unsound):
            assert self.form(rows, scaling, **changes) is None, changes
        assert self.form(rows.view(np.memmap), scaling, most_rows=3e4) is None
        assert self.form(rows, Scaling(lower, upper), most_rows=3e4) is None  # no means are released
        assert self.form(rows, None, most_rows=3e4) is None

    def test_numbers_are_not_taken_for_categories(self):
        rng = np.random.default_rng(4)
        rows = rng.beta(1.0, 9.0, size=(N_ROWS, 30))  # a mean of 0.1, and never zero
        scaling = standardising(rows, np.zeros(30), np.ones(30))
        assert self.form(rows, scaling, most_rows=3e4) is None
        assert stored_share(np.full(5, 0.1), np.full(5, 0.3)) == pytest.approx(0.1)
        assert stored_share(np.full(5, 0.1), np.full(5, 0.09)) == 1.0
        assert stored_share(np.full(5, -0.01), np.full(5, 0.1)) == 0.0  # noise on the mean of a rare one

    @pytest.mark.parametrize("value", [1e90, 1e300])
    def test_a_row_of_enormous_length_leads_to_careful_arithmetic(self, value):
        rows, _, _ = table()
        unbounded = Scaling(mean=np.full(25, 0.08), deviation=np.full(25, 0.28))
        rows[:, -1] = 0.0
        assert self.form(rows, unbounded, most_rows=3e4) is not None
        rows[5, -1] = value
        features = Features(rows, clip=1.0, scaling=unbounded, reads=100.0, most_rows=3e4)
        assert features._centred is None
        assert features.careful

    def test_the_rows_themselves_are_not_asked(self):
        """A neighbour's form is the same: only sizes, bounds and released numbers decide."""
        rows, lower, upper = table()
        scaling = standardising(rows, lower, upper)
        full = np.tile(upper, (N_ROWS, 1))
        assert self.form(full, scaling, most_rows=3e4) is not None


class TestRounding:
    def test_a_year_beside_its_spread_is_kept_whole(self):
        assert block_rows_for(np.array([2020.0]), np.array([0.2]), 60_000) is None
        assert block_rows_for(np.array([2020.0]), np.array([0.2]), 600) is not None

    def test_the_more_rows_the_smaller_the_blocks(self):
        shift, factor = np.full(100, 0.3), np.full(100, 3.0)
        sizes = [block_rows_for(shift, factor, rows) for rows in (2e4, 6e4, 1.2e5, 2e5, 1e7)]
        assert sizes[0] == 32768
        assert sizes[-1] is None
        known = [size or 0 for size in sizes]
        assert known == sorted(known, reverse=True)
        assert len(set(known)) > 2

    def test_enormous_factors_are_refused(self):
        assert block_rows_for(np.zeros(2), np.array([1.0, 1e101]), 1e4) is None

    @settings(max_examples=40, deadline=None)
    @given(seed=st.integers(0, 2**32 - 1), size=st.sampled_from([0.01, 1.0, 300.0, 1e6]))
    def test_sums_are_off_by_no_more_than_the_slack(self, seed, size):
        """Against sums in whole fractions; residuals are as long as clipping lets them be."""
        rng = np.random.default_rng(seed)
        count, width, clip = 300, 3, 1.7
        shift, factor = rng.uniform(0, 2, width) * size, rng.uniform(0.5, 2.0, width)
        entries = scipy.sparse.random_array((count, width), density=0.4, rng=rng, format="csr")
        entries.data *= size
        rows = CentredRows(entries, shift, factor)
        dense = factor * (entries.toarray() - shift)
        residual = clip / np.sqrt(np.square(dense).sum(axis=1) + 1.0) * rng.choice([-1.0, 1.0], count)
        found = rows.T.dot(residual)
        exact = [
            sum(
                Fraction(factor[j]) * (Fraction(u) - Fraction(shift[j])) * Fraction(r)
                for u, r in zip(entries.toarray()[:, j], residual, strict=True)
            )
            for j in range(width)
        ]
        error = np.linalg.norm([float(Fraction(a) - b) for a, b in zip(found, exact, strict=True)])
        length = float(np.linalg.norm(factor * shift))
        bound = clip * (1.0 + 2.0 * length) * count * (count + 1) * 2.0**-53
        assert error <= bound
        if block_rows_for(shift, factor, count) is not None:
            assert 2.0 * bound <= clip * (summation_slack(count + 1) + CENTRING_SLACK)

    def test_every_plan_has_room_for_it(self):
        plan = Plan(n_rows=100, sampling_rate=0.5, steps=1, clip=2.0, gradient_noise=1.0, noise="discrete")
        assert plan.gradient_mechanism.slack >= CENTRING_SLACK + summation_slack(plan.most_rows)
