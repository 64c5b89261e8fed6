"""One row moves the unnoised sums by no more than the plan says, whatever the row.

The sums of a batch with and without one row are compared. Adding and removing are the same comparison read in
two directions; a swap is one of each. Nothing is assumed of the row but that it is finite.
"""

from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
import scipy.sparse
from hypothesis import event, given, settings
from hypothesis import strategies as st

from ratewise.exceptions import InvalidInput
from ratewise.linear import LinearEngine
from ratewise.plan import DualControl, Plan
from ratewise.scaling import Scaling

HUGE = {np.float32: 3e38, np.float64: 1.7e308}


@st.composite
def problems(draw):
    """Rows of many kinds, a model, a table of weights and a way of storing it all."""
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    n_rows, n_features = draw(st.integers(2, 7)), draw(st.integers(1, 5))
    n_classes, n_cells = draw(st.integers(2, 4)), draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scale = draw(st.sampled_from([1e-30, 1.0, 50.0, 1e9, 1e18, HUGE[dtype]]))
    X = (rng.uniform(-1, 1, (n_rows, n_features)) * min(scale, HUGE[dtype])).astype(dtype)
    X[rng.random(X.shape) < draw(st.sampled_from([0.0, 0.5]))] = 0.0
    if draw(st.booleans()):
        X[0] = 0.0
    if draw(st.booleans()):
        X[:] = X[-1]
    cells = np.zeros(n_rows, dtype=int) if draw(st.booleans()) else rng.integers(0, n_cells, n_rows)
    clip = draw(st.sampled_from([1e-3, 1.0, 30.0]))
    plan = Plan(
        n_rows=n_rows,
        sampling_rate=0.5,
        steps=20,
        clip=clip,
        gradient_noise=1.0,
        histogram_noise=1.0,
        temperature=draw(st.sampled_from([1.0, 0.5, 3.0])),
        rates=draw(st.sampled_from(["hard", "soft"])),
        row_norm=draw(st.sampled_from([None, 0.1, 2.0])),
        block_rows=draw(st.sampled_from([None, 1, 2])),
        # with more than one step to a release, counting waits
        dual=DualControl(interval=draw(st.sampled_from([1, 5]))),
    )
    # a memory map keeps no norms between steps: they are computed block by block, in its own precision
    storage = draw(st.sampled_from(["array", "map", "sparse", "centred", "coded"]))
    sparse = storage == "sparse"
    stored = scipy.sparse.csr_array(X) if sparse else X.view(np.memmap) if storage == "map" else X
    scaling = None
    if draw(st.booleans()):
        scaling = Scaling(-np.ones(n_features), np.full(n_features, 3.0), "zero" if sparse else "lower")
    curved = np.flatnonzero(rng.random(n_features) < draw(st.sampled_from([0.0, 0.7])))
    if scaling is not None and not sparse:
        scaling = replace(scaling, curved=curved)
    intercept = draw(st.booleans())
    if storage == "centred":
        width = n_features + len(curved)
        mean, deviation = rng.uniform(0, 1, width), rng.uniform(0.1, 3, width)
        bounds = -np.ones(n_features), np.full(n_features, 3.0)
        scaling = Scaling(*bounds, mean=mean, deviation=deviation, curved=curved)
    if storage == "coded":  # flags and what is none of them, by bounds that flags have
        flags = rng.choice([0.0, 1.0, 0.3, -2.0, 5.0], X.shape, p=[0.5, 0.3, 0.1, 0.05, 0.05])
        stored = np.where(rng.random(X.shape) < draw(st.sampled_from([0.0, 0.3])), X, flags).astype(dtype)
        width = n_features + len(curved)
        mean, deviation = rng.uniform(0, 1, width), rng.uniform(0.1, 3, width)
        bounds = np.zeros(n_features), np.ones(n_features)
        scaling = Scaling(*bounds, mean=mean, deviation=deviation, curved=curved)
    if scaling is not None and scaling.curved is not None and draw(st.booleans()):
        middle, reach = rng.uniform(-2, 4, len(curved)), rng.uniform(1e-3, 5, len(curved))
        scaling = replace(scaling, bend_lower=middle - reach, bend_upper=middle + reach)
    # tables this small are never kept without their zeros otherwise
    coded = {"_MANY_READS": 0.0 if storage == "coded" else 1e9, "_CATEGORIES": 0.0}
    with (
        mock.patch.multiple("ratewise.centred", _SPARSE_ENTRIES=0, _SPARSE_SHARE=1.0),
        mock.patch.multiple("ratewise.coded", _WHOLE_SHARE=draw(st.sampled_from([0.0, 2.0])), **coded),
    ):
        engine = LinearEngine(
            plan,
            stored,
            rng.integers(0, n_classes, n_rows),
            n_classes,
            cells=cells,
            n_cells=n_cells,
            scaling=scaling,
            intercept=intercept,
        )
    kept = engine.features._centred
    event(f"rows kept {'as they are' if kept is None else type(kept.entries).__name__}")
    event(f"curves: {engine.features.n_features > n_features}")
    theta = rng.normal(size=engine.n_parameters) * draw(st.sampled_from([0.0, 1.0, 1e6]))
    table = None
    if draw(st.booleans()):
        table = rng.normal(size=(n_cells, n_classes)) * draw(st.sampled_from([1.0, 1e5]))
    return engine, clip, theta, table, n_rows


def both_sums(engine, rows, theta, table):
    gradient, tally = engine.sums(rows, theta, table)
    return gradient, engine.histograms([tally])[0]


def rounding(clip, n_rows):
    """What adding up a handful of rows in double precision can change, however they are stored."""
    return 8 * n_rows * float(np.finfo(np.float64).eps) * clip


@settings(max_examples=400, deadline=None)
@given(problem=problems())
def test_one_row_more_or_less(problem):
    engine, clip, theta, table, n_rows = problem
    everyone = np.arange(n_rows)
    gradient, histogram = both_sums(engine, everyone, theta, table)
    for row in everyone:
        less, counted = both_sums(engine, np.delete(everyone, row), theta, table)
        assert np.all(np.isfinite(less))
        assert np.linalg.norm(gradient - less) <= clip + rounding(clip, n_rows)
        change = histogram - counted
        assert np.abs(change).sum() <= 1 + 1e-5
        assert np.linalg.norm(change) <= 1 + 1e-5
        assert np.count_nonzero(np.abs(change).sum(axis=1) > 1e-5) == 1


@settings(max_examples=200, deadline=None)
@given(problem=problems())
def test_one_row_alone(problem):
    """A batch of one row shows its clipped gradient itself, without the rounding of a sum."""
    engine, clip, theta, table, n_rows = problem
    for row in range(n_rows):
        gradient, histogram = both_sums(engine, np.array([row]), theta, table)
        assert np.linalg.norm(gradient) <= clip
        assert histogram.sum() == np.float64(1.0) or abs(histogram.sum() - 1.0) < 1e-6
        assert histogram.min() >= 0


@settings(max_examples=100, deadline=None)
@given(problem=problems())
def test_swapping_a_row_is_adding_and_removing(problem):
    engine, clip, theta, table, n_rows = problem
    rest = np.arange(2, n_rows)
    with_first, counts_first = both_sums(engine, np.append(0, rest), theta, table)
    with_second, counts_second = both_sums(engine, np.append(1, rest), theta, table)
    assert np.linalg.norm(with_first - with_second) <= 2 * clip + rounding(clip, n_rows)
    assert np.abs(counts_first - counts_second).sum() <= 2 + 1e-5


@settings(max_examples=50, deadline=None)
@given(problem=problems())
def test_an_empty_batch_adds_nothing(problem):
    engine, _, theta, table, _ = problem
    gradient, histogram = both_sums(engine, np.array([], dtype=np.intp), theta, table)
    assert not gradient.any()
    assert not histogram.any()


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    storage=st.sampled_from(["array", "map", "sparse", "centred"]),
    data=st.data(),
)
def test_a_row_changes_nothing_in_how_other_rows_are_prepared(seed, storage, data):
    """The engine is built anew without the row: what it finds on the whole matrix must not reach others."""
    rng = np.random.default_rng(seed)
    powers = data.draw(st.lists(st.sampled_from([-200, 0, 78, 160, 306, 308]), min_size=4, max_size=4))
    X = rng.choice([-1.0, 1.0], (4, 2)) * 10.0 ** (np.array(powers)[:, None] - rng.choice([0.0, 2.0], (4, 2)))
    X = np.repeat(X, [50, 50, 50, 1], axis=0)  # the last is the row that comes and goes
    kinds = {"map": lambda x: x.view(np.memmap), "sparse": scipy.sparse.csr_array}
    kind = kinds.get(storage, np.asarray)
    deviation = data.draw(st.sampled_from([[1.0, 0.5], [1e-3, 1e3]]))
    scaling = Scaling(deviation=deviation)
    if storage == "centred":
        scaling = Scaling(mean=np.array([0.3, 1.0]), deviation=deviation)
    theta = rng.normal(size=3)
    found = []
    for n_rows in (151, 150):
        plan = Plan(n_rows=n_rows, sampling_rate=1.0, steps=9, clip=1.0, gradient_noise=1.0, row_norm=5.0)
        with mock.patch.multiple("ratewise.centred", _SPARSE_ENTRIES=0, _SPARSE_SHARE=1.0):
            engine = LinearEngine(
                plan, kind(X[:n_rows].copy()), np.zeros(n_rows, dtype=int), 2, scaling=scaling
            )
        found.append(engine.sums(np.arange(n_rows), theta, None)[0])
    # rows that are kept apart from their means, of length up to 300 here, have a slack of their own
    assert np.linalg.norm(found[0] - found[1]) <= 1.0 + rounding(601.0 if storage == "centred" else 1.0, 151)


@pytest.mark.parametrize("sparse", [False, True])
def test_infinity_is_refused_even_where_it_would_be_cut_off(sparse):
    X = np.array([[1.0, 0.0], [np.inf, 1.0]])
    plan = Plan(n_rows=2, sampling_rate=1.0, steps=1, clip=1.0, gradient_noise=1.0)
    scaling = Scaling([-1.0, -1.0], [1.0, 1.0], "zero")
    with pytest.raises(InvalidInput, match="NaN or infinity"):
        LinearEngine(plan, scipy.sparse.csr_array(X) if sparse else X, np.array([1, 0]), 2, scaling=scaling)


def test_repeated_entries_of_a_sparse_row_cannot_hide_from_the_norm():
    """(3, 4) stored as four entries in the same column is a row of norm 14, not of norm sqrt(50)."""
    indices, data = np.zeros(4, dtype=np.int32), np.array([3.0, 4.0, 3.0, 4.0])
    X = scipy.sparse.csr_matrix((data, indices, np.array([0, 4, 4], dtype=np.int32)), shape=(2, 1))
    X.has_canonical_format = True  # a stale flag must not be believed
    plan = Plan(n_rows=2, sampling_rate=1.0, steps=1, clip=1.0, gradient_noise=1.0)
    engine = LinearEngine(plan, X, np.array([1, 0]), 2, intercept=False)
    gradient, _ = engine.sums(np.array([0]), np.zeros(1), None)
    assert 0.999 < abs(gradient[0]) <= 1.0
    assert X.nnz == 4  # the caller's matrix is left as it was


@pytest.mark.parametrize("storage", ["array", "map", "sparse"])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_many_rows_in_single_precision_do_not_round_past_the_clip(storage, n_classes):
    """Sixty thousand equal rows: in single precision, the sum with and without one differs by 1.01 C."""
    n_rows = 60_000
    plan = Plan(n_rows=n_rows, sampling_rate=0.5, steps=1, clip=1.0, gradient_noise=1.0, block_rows=1 << 16)
    for value in (0.7, 1.0, 2.3, 3.3):
        X = np.full((n_rows, 3), value, dtype=np.float32)
        stored = {"sparse": scipy.sparse.csr_array, "map": lambda x: x.view(np.memmap)}.get(
            storage, np.asarray
        )(X)
        engine = LinearEngine(plan, stored, np.zeros(n_rows, dtype=int), n_classes)
        everyone, theta = np.arange(n_rows), np.zeros(engine.n_parameters)
        whole, _ = engine.sums(everyone, theta, None)
        less, _ = engine.sums(everyone[:-1], theta, None)
        assert np.linalg.norm(whole - less) <= 1.0 + 1e-9
