"""Rows that are kept without their zeros are the same rows."""

import warnings
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from ratewise import centred
from ratewise.centred import CentredRows, block_rows_for, stored_share
from ratewise.exceptions import InvalidInput
from ratewise.features import Features
from ratewise.linear import LinearEngine
from ratewise.mechanisms import CENTRING_SLACK, summation_slack
from ratewise.plan import Plan
from ratewise.scaling import Scaling

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
    monkeypatch.setattr(centred, "_SPARSE_ENTRIES", 1)


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
        monkeypatch.setattr(centred, "_SPARSE_ENTRIES", 1)
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
        assert whole.features.block_rows == 32768
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
        # more reads would pay for codes in place of entries (`test_coded`)
        options = {"clip": 1.0, "reads": 20.0, "most_rows": 1e5} | changes
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

    @pytest.mark.parametrize(
        ("mean", "deviation", "bounds"),
        [
            (0.1, 0.09, (0.0, 1.0)),
            (0.5, 0.29, (0.0, 1.0)),
            (50.0, 15.0, (10.0, 90.0)),
            (0.0, 1.0, (-4.0, 4.0)),
            (-5.0, 2.0, (-10.0, 0.0)),
            (0.0, 1.0, None),
            (-5.0, 1.0, None),
            (3.0, 1.0, None),
        ],
    )
    def test_numbers_are_not_taken_for_categories(self, mean, deviation, bounds):
        """They are never zero: kept as sparse rows they would take more room and time than they are worth."""
        rows = np.random.default_rng(4).normal(mean, deviation, size=(N_ROWS, 30))
        if bounds is None:
            scaling = Scaling(mean=rows.mean(axis=0), deviation=rows.std(axis=0))
        else:
            scaling = standardising(rows, *(np.full(30, bound) for bound in bounds))
        assert self.form(rows, scaling, most_rows=3e4) is None

    @pytest.mark.parametrize("bounds", [(0.0, 1.0), (-1.0, 0.0), (2000.0, 2004.0), (-1.0, 1.0), None])
    def test_categories_are_known_wherever_they_rest(self, bounds):
        """At zero, or at the bound that is nearest to it, with or without bounds."""
        ones = (np.random.default_rng(5).random((N_ROWS, 30)) < 0.1).astype(float)
        if bounds is None:
            scaling, rows = Scaling(mean=ones.mean(axis=0), deviation=ones.std(axis=0)), ones
        else:
            away = bounds[1] if bounds[0] >= 0 or bounds[1] > 0 else bounds[0]
            rest = np.clip(0.0, *bounds)
            rows = rest + ones * (away - rest)
            scaling = standardising(rows, *(np.full(30, bound) for bound in bounds))
        kept = self.form(rows, scaling, most_rows=3e4)
        assert kept is not None
        assert kept.entries.nnz == np.count_nonzero(ones)

    def test_the_share_that_is_stored(self):
        one_sided, both = np.ones(5, dtype=bool), np.zeros(5, dtype=bool)
        assert stored_share(np.full(5, 0.1), np.full(5, 0.3), both) == pytest.approx(0.1)
        assert stored_share(np.full(5, 0.1), np.full(5, 0.09), one_sided) == 1.0
        assert stored_share(np.full(5, 0.001), np.full(5, 0.2), one_sided) == pytest.approx(0.001)
        assert stored_share(np.full(5, 0.001), np.full(5, 0.2), both) == 1.0
        assert stored_share(np.full(5, 1.5), np.full(5, 0.9), one_sided) == 1.0

    def test_what_is_kept_has_its_limit(self, monkeypatch):
        rows, lower, upper = table()
        scaling = standardising(rows, lower, upper)
        for room, kept in ((12 * 4 * N_ROWS, True), (12 * 2 * N_ROWS, False)):
            monkeypatch.setattr("ratewise.features._KEPT_BYTES", room)
            assert (self.form(rows, scaling, most_rows=3e4) is not None) is kept

    @pytest.mark.parametrize("value", [1e90, 1e308])
    def test_a_row_of_enormous_length_leads_to_other_arithmetic(self, value):
        rows, _, _ = table()
        unbounded = Scaling(mean=np.full(25, 0.08), deviation=np.full(25, 0.28))
        rows[:, -1] = 0.0
        assert self.form(rows, unbounded, most_rows=3e4) is not None
        rows[5, -1] = value
        features = Features(rows, clip=1.0, scaling=unbounded, reads=100.0, most_rows=3e4)
        assert features._centred is None
        assert features.careful
        assert features.scaling is None  # prepared once, all the same

    def test_bounds_cut_off_what_is_enormous(self):
        """One row beyond its bounds would else make every step slower: a clock would tell of it."""
        rows, lower, upper = table()
        scaling = standardising(rows, lower, upper)
        rows[5, -1] = 1.7e308
        kept = self.form(rows, scaling, most_rows=3e4)
        assert kept is not None
        assert kept.entries.max() == 90.0 - 17.0

    def test_bounds_that_coincide_do_not_warn(self):
        rows, lower, upper = table()
        scaling = standardising(rows, lower, upper)
        upper[0] = 0.0
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            flat = Scaling(lower, upper, mean=scaling.mean, deviation=scaling.deviation)
            assert self.form(rows, flat, most_rows=3e4) is not None

    def test_the_engine_asks_for_its_largest_batch(self, monkeypatch):
        asked = []

        def watched(*arguments, **sizes):
            asked.append(sizes["most_rows"])

        monkeypatch.setattr("ratewise.features.centring_for", watched)
        rows, lower, upper = table()
        found = engine(rows, standardising(rows, lower, upper))
        assert found.features._centred is None
        # batches of 4,000 rows at a rate of one half: larger ones come less often than once in exp(50)
        assert binom.logsf(asked[0], N_ROWS, 0.5) < -50.0

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

    def test_where_one_block_size_ends_and_the_next_begins(self):
        """2 * S * 100,000 * (32,768 + 4) / 2**52 is 1e-5 at S = 6.871."""
        assert block_rows_for(np.array([6.86]), np.ones(1), 1e5) == 32768
        assert block_rows_for(np.array([3.44]), np.full(1, 2.0), 1e5) == 16384

    def test_the_more_rows_the_smaller_the_blocks(self):
        shift, factor = np.full(100, 0.3), np.full(100, 3.0)
        sizes = [block_rows_for(shift, factor, rows) for rows in (2e4, 6e4, 1.2e5, 2e5, 1e7)]
        assert sizes[0] == 32768
        assert sizes[-1] is None
        known = [size or 0 for size in sizes]
        assert known == sorted(known, reverse=True)
        assert len(set(known)) > 2

    @pytest.mark.parametrize("factor", [1e101, 1e-101])
    def test_enormous_factors_and_entries_are_refused(self, factor):
        assert block_rows_for(np.zeros(2), np.array([1.0, 0.0]), 1e4) is not None
        assert block_rows_for(np.zeros(2), np.array([1.0, factor]), 1e4) is None

    def test_a_larger_block_is_not_to_be_had(self):
        rows = np.zeros((2000, 300))
        rows[:, 0] = 27.0
        scaling = Scaling(mean=np.r_[27.0, np.full(299, 0.01)], deviation=np.r_[1.0, np.full(299, 0.1)])
        options = {"clip": 1.0, "scaling": scaling, "reads": 100.0, "most_rows": 2e5}
        chosen = block_rows_for(scaling.tables().shift, scaling.tables().factor, 2e5)
        features = Features(rows, block_rows=1 << 20, **options)
        assert features._centred is not None
        assert features.block_rows == chosen < 1 << 15
        assert Features(rows, block_rows=64, **options).block_rows == 64

    @pytest.mark.parametrize("blocks", ["as chosen", "one"])
    def test_rows_made_to_round_badly(self, blocks):
        """A sum that climbs to a power of two and hovers there: in one block it passes the slack."""
        count, length = 200_000, 27.0
        shift = np.array([length])
        first, top, step = 1.0 / np.sqrt(length**2 + 1.0), 2.0**21, 2.0**-31
        climbing = int((top - length * first) // length)
        last = (top - length * first - climbing * length) / length
        entries = np.r_[2.0 * length, np.full(climbing + 1, length), np.ones(count - climbing - 2)]
        hovering = np.where(np.arange(count - climbing - 2) % 2 == 0, 64.51 * step, -64.49 * step)
        residual = np.r_[first, np.ones(climbing), last, hovering]
        assert np.all(np.abs(residual) <= (1 + 1e-12) / np.sqrt((entries - length) ** 2 + 1.0))
        rows = CentredRows(scipy.sparse.csr_array(entries[:, None]), shift, np.ones(1))
        size = count if blocks == "one" else block_rows_for(shift, np.ones(1), count)

        def total(start):
            found = np.zeros(2)
            for place in range(start, count, size):
                piece = np.arange(place, min(place + size, count))
                found += [rows.take(piece).T.dot(residual[piece])[0], residual[piece].sum()]
            return found

        beyond = np.linalg.norm(total(0) - total(1)) - 1.0
        held = beyond <= summation_slack(count) + CENTRING_SLACK
        assert held == (blocks != "one")

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
        assert plan.gradient_mechanism.slack >= 1e-5 + 1e-9
        assert CENTRING_SLACK <= 1e-5
