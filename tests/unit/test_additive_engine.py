"""The engines against dense implementations with explicit features, and their sensitivity bit by bit."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from ratewise import RateConstrainedClassifier, demographic_parity
from ratewise.data.table import id_units, row_units
from ratewise.models.additive import AdditiveEngine, Problem
from ratewise.models.linear import ROW_NORM, SparseEngine, prepare_sparse
from ratewise.preprocessing.basis import RowCodes, build_basis
from ratewise.preprocessing.discovery import ColumnDeclaration
from ratewise.preprocessing.grids import CategoricalGrid, ContinuousGrid

N = 60
GRIDS = (ContinuousGrid("x", -2, 3, log_cells=8), CategoricalGrid("k", ("a", "b", "c")), ContinuousGrid("z", 0, 1))


def made(classes, seed=0, units=None, hard=True, temperature=1.0, cells=True):
    rng = np.random.default_rng(seed)
    histograms = [rng.normal(30, 20, grid.n_counts) for grid in GRIDS]
    basis = build_basis(GRIDS, histograms, 5.0, 400.0, 4.0)
    bins = np.stack(
        [rng.integers(start, stop, N) for start, stop in zip(basis.offsets[:-1], basis.offsets[1:], strict=True)]
    )
    labels = rng.integers(-1, classes, N)
    places = np.where(labels < 0, -1, rng.integers(-1, 4, N)) if cells else None
    problem = Problem(labels, places, classes, 4)
    engine = AdditiveEngine(RowCodes(bins.T), basis, problem, units or row_units(N), temperature=temperature, hard=hard)
    features = np.column_stack([basis.matrix.toarray()[bins].sum(axis=0) - basis.centre, np.ones(N)])
    return engine, features, problem, rng


def reference(features, problem, parameters, weights, clip, temperature, units):
    """Return clipped gradients of the units by definition."""
    classes = problem.n_classes
    outputs = 1 if classes == 2 else classes
    theta = parameters.reshape(outputs, -1)
    total = np.zeros_like(theta)
    for rows, share in units:
        gradient, length = np.zeros_like(theta), 0.0
        for row in rows:
            if problem.labels[row] < 0:
                continue
            scores = theta @ features[row]
            full = np.array([0.0, scores[0]]) if classes == 2 else scores
            soft = np.exp(full - full.max()) / np.exp(full - full.max()).sum()
            residual = soft - np.eye(classes)[problem.labels[row]]
            if weights is not None and problem.cells is not None and problem.cells[row] >= 0:
                tempered = np.exp(temperature * (full - full.max()))
                tempered /= tempered.sum()
                cost = weights[problem.cells[row]]
                residual = residual + temperature * tempered * (cost - tempered @ cost)
            residual = share * (residual[1:] if classes == 2 else residual)
            gradient += np.outer(residual, features[row])
            length += np.linalg.norm(residual) * np.linalg.norm(features[row])
        total += gradient * min(1.0, clip / max(length, 1e-300))
    return total.ravel()


@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("clip", [0.3, 5.0, 1e6])
@pytest.mark.parametrize("temperature", [1.0, 4.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_clipped_sums_agree_with_explicit_features(classes, clip, temperature, weighted):
    engine, features, problem, rng = made(classes, temperature=temperature)
    parameters = rng.normal(size=engine.n_parameters) * 0.3
    weights = rng.normal(size=(4, classes)) if weighted else None
    sample = np.flatnonzero(rng.random(N) < 0.6)
    found = engine.sums(sample, parameters, weights, clip)
    wanted = reference(features, problem, parameters, weights, clip, temperature, [([r], 1.0) for r in sample])
    assert np.allclose(found.gradient, wanted, rtol=0, atol=1e-7 * max(1.0, np.abs(wanted).max()))


@pytest.mark.parametrize("max_rows", [1, 3])
def test_units_are_clipped_as_one(max_rows):
    codes = np.arange(N) // 4
    units = id_units(codes, N // 4, max_rows, "id")
    engine, features, problem, rng = made(3, units=units)
    parameters = rng.normal(size=engine.n_parameters) * 0.3
    rows = [(np.flatnonzero(codes == unit)[:max_rows], units.row_weights) for unit in range(N // 4)]
    parts = [(mine, 1.0 if weights is None else float(weights[mine[0]])) for mine, weights in rows]
    found = engine.sums(np.arange(N // 4), parameters, None, 0.7).gradient
    assert np.allclose(found, reference(features, problem, parameters, None, 0.7, 1.0, parts), atol=1e-7)


def test_no_clip_is_the_derivative_of_the_lagrangian():
    """The gradient of log loss plus the weighted soft predictions, by finite differences."""
    engine, features, problem, rng = made(3, temperature=2.0)
    weights = rng.normal(size=(4, 3))
    parameters = rng.normal(size=engine.n_parameters) * 0.2

    def lagrangian(theta):
        scores = features @ theta.reshape(3, -1).T
        chances = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        tempered = np.exp(2.0 * scores) / np.exp(2.0 * scores).sum(axis=1, keepdims=True)
        known = problem.labels >= 0
        loss = -np.log(chances[known, problem.labels[known]]).sum()
        inside = problem.cells >= 0
        return loss + (weights[problem.cells[inside]] * tempered[inside]).sum()

    found = engine.sums(np.arange(N), parameters, weights, 1e4).gradient
    for place in rng.choice(len(parameters), 25, replace=False):
        step = np.zeros_like(parameters)
        step[place] = 1e-5
        numeric = (lagrangian(parameters + step) - lagrangian(parameters - step)) / 2e-5
        assert found[place] == pytest.approx(numeric, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("hard", [True, False])
@pytest.mark.parametrize("classes", [2, 4])
def test_histograms_count_rows_with_a_class_once(hard, classes):
    engine, features, problem, rng = made(classes, hard=hard)
    parameters = rng.normal(size=engine.n_parameters)
    found = engine.sums(np.arange(N), parameters, None, 1.0).histogram
    theta = parameters.reshape(engine.n_outputs, -1)
    scores = features @ theta.T
    full = np.column_stack([np.zeros(N), scores]) if classes == 2 else scores
    soft = np.exp(full - full.max(axis=1, keepdims=True))
    soft /= soft.sum(axis=1, keepdims=True)
    if hard:
        soft = np.eye(classes)[full.argmax(axis=1)]
    wanted = np.array([soft[problem.cells == cell].sum(axis=0) for cell in range(4)])
    assert np.allclose(found, wanted, atol=1e-4)
    assert np.array_equal(np.rint(found / engine.count_step) * engine.count_step, found)
    by_cell, outcomes = engine.counts(parameters)
    if hard:
        assert np.array_equal(by_cell, wanted)
    known = problem.labels >= 0
    assert outcomes.sum() == known.sum()
    assert outcomes[:, 1].sum() == (full.argmax(axis=1) == problem.labels)[known].sum()


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    classes=st.sampled_from([2, 5]),
    size=st.sampled_from([0.0, 1e-3, 1.0, 1e3, 1e15, 1e29]),
    cost=st.sampled_from([0.0, 1.0, 1e6, 1e200]),
    clip=st.sampled_from([1e-3, 1.0, 50.0]),
    temperature=st.sampled_from([1.0, 7.0, 1e300]),
    persons=st.sampled_from([None, 1, 3]),
    hard=st.booleans(),
)
def test_one_unit_moves_sums_by_the_sensitivity_at_most(seed, classes, size, cost, clip, temperature, persons, hard):
    units = None if persons is None else id_units(np.arange(N) // 4, N // 4, persons, "row")
    engine, _, _, rng = made(classes, seed, units, hard, temperature)
    parameters = rng.normal(size=engine.n_parameters) * size
    weights = rng.normal(size=(4, classes)) * cost
    everybody = np.arange(engine.units.n_units)
    whole = engine.sums(everybody, parameters, weights, clip)
    for victim in (0, 5):
        rest = engine.sums(np.delete(everybody, victim), parameters, weights, clip)
        moved = np.linalg.norm(whole.gradient - rest.gradient)
        assert moved <= clip * (1.0 + engine.slack(N))
        assert np.abs(whole.histogram - rest.histogram).sum() <= 1.0
        alone = engine.sums(everybody[victim : victim + 1], parameters, weights, clip)
        assert np.array_equal(alone.histogram, whole.histogram - rest.histogram)
    assert np.all(np.isfinite(whole.gradient))


def test_sums_do_not_depend_on_order_or_partition():
    engine, _, _, rng = made(3)
    parameters = rng.normal(size=engine.n_parameters)
    whole = engine.sums(np.arange(N), parameters, None, 1.0)
    shuffled = engine.sums(rng.permutation(N), parameters, None, 1.0)
    assert np.array_equal(whole.gradient, shuffled.gradient)
    assert np.array_equal(whole.histogram, shuffled.histogram)


def test_empty_samples_and_units_without_rows():
    engine, *_ = made(2)
    empty = engine.sums(np.zeros(0, dtype=np.intp), np.ones(engine.n_parameters), None, 1.0)
    assert not empty.gradient.any()
    usable = np.arange(N) < 12
    units = id_units(np.arange(N) // 4, N // 4, 3, "id", usable)
    engine, *_ = made(2, units=units)
    some = engine.sums(np.arange(N // 4), np.zeros(engine.n_parameters), None, 1.0)
    first = engine.sums(np.arange(3), np.zeros(engine.n_parameters), None, 1.0)
    assert np.array_equal(some.gradient, first.gradient)
    nobody = engine.sums(np.arange(5, N // 4), np.zeros(engine.n_parameters), None, 1.0)
    assert not nobody.gradient.any()


@pytest.mark.parametrize("classes", [2, 4])
def test_sparse_rows_agree_with_dense_ones(classes):
    rng = np.random.default_rng(3)
    dense = rng.normal(size=(N, 8)) * (rng.random((N, 8)) < 0.4)
    names = [f"x{place}" for place in range(8)]
    columns = dict.fromkeys(names, ColumnDeclaration(bounds=(-2.0, 2.0)))
    rows = prepare_sparse(sp.csr_array(dense), columns, names)
    scaled = dense / 2.0
    lengths = np.linalg.norm(scaled, axis=1, keepdims=True)
    scaled *= np.minimum(1.0, ROW_NORM / np.maximum(lengths, 1e-300))
    assert np.allclose(rows.toarray(), scaled)
    problem = Problem(rng.integers(-1, classes, N), rng.integers(-1, 3, N), classes, 3)
    engine = SparseEngine(rows, problem, row_units(N))
    parameters = rng.normal(size=engine.n_parameters)
    features = np.column_stack([scaled, np.ones(N)])
    wanted = reference(features, problem, parameters, None, 0.5, 1.0, [([r], 1.0) for r in range(N)])
    found = engine.sums(np.arange(N), parameters, None, 0.5)
    assert np.allclose(found.gradient, wanted, atol=1e-8)
    rest = engine.sums(np.arange(1, N), parameters, None, 0.5)
    assert np.linalg.norm(found.gradient - rest.gradient) <= 0.5 * (1.0 + engine.slack(N))


def test_repeated_entries_of_a_sparse_row_are_added_up():
    """A row whose norm is taken entry by entry would be longer than the norm says."""
    data, indices, indptr = np.full(40, 3.0), np.zeros(40, dtype=int), np.array([0, 40])
    matrix = sp.csr_array((data, indices, indptr), shape=(1, 2))
    columns = {"a": ColumnDeclaration(), "b": ColumnDeclaration()}
    for flag in (False, True):
        matrix.has_canonical_format = flag
        rows = prepare_sparse(matrix, columns, ["a", "b"])
        assert np.linalg.norm(rows.toarray()) <= ROW_NORM * (1 + 1e-12)
        engine = SparseEngine(rows, Problem(np.array([1]), None, 2), row_units(1))
        found = engine.sums(np.array([0]), np.zeros(3), None, 0.1).gradient
        assert np.linalg.norm(found) <= 0.1 * (1 + 1e-9)


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("kind", ["int8", "float64", "U3", "object"])
def test_a_fit_on_a_memory_map_equals_one_in_memory(tmp_path, kind, declared):
    """Labels and cells of a memory map are coded when a step asks for them."""
    rng = np.random.default_rng(3)
    X = rng.random((900, 3))
    y = (X[:, 0] + rng.random(900) > 1).astype(int)
    y[:7] = 9  # no class
    sex = rng.integers(0, 3, 900)  # 2 is not declared
    y, sex = y.astype(kind), sex.astype(kind)
    np.save(tmp_path / "X.npy", X)
    fits = []
    for table in (X, np.load(tmp_path / "X.npy", mmap_mode="r")):
        model = RateConstrainedClassifier(
            demographic_parity("sex", max_gap=0.1),
            epsilon=2.0,
            classes=[0, 1],
            group_values={"sex": [0, 1]},
            feature_bounds=(0.0, 1.0) if declared else None,
            random_state=1,
        )
        fits.append(model.fit(table, y, sensitive_features={"sex": sex}))
    first, second = (fit.model_.scorer for fit in fits)
    assert np.array_equal(first.table, second.table)
    assert np.array_equal(fits[0].history_["histogram"], fits[1].history_["histogram"])
    assert str(fits[0].certificate_) == str(fits[1].certificate_)
