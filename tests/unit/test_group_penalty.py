"""The penalty that shrinks the cells of columns without a signal in additive models."""

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize

from ratewise import InvalidInput, RateConstrainedClassifier, TrainingConfig
from ratewise.estimators.classifier import session_of
from ratewise.preprocessing.basis import build_basis
from ratewise.preprocessing.grids import CategoricalGrid, ContinuousGrid, UnusedGrid
from ratewise.training.loop import GroupPenalty

GROUPED = np.array([False, True, True, False, False, True, True, True, False])


@pytest.mark.parametrize("outputs", [1, 3])
def test_a_step_is_the_proximal_map_of_the_norms(outputs):
    rng = np.random.default_rng(outputs)
    weights, mean_squares = rng.normal(size=(outputs, 9)), rng.random(9 * outputs)
    penalty = GroupPenalty.of(GROUPED, mean_squares, 0.8)
    groups = [np.array([1, 2]), np.array([5, 6, 7])]
    stepped = weights.ravel().copy()
    penalty.shrink(stepped, 0.5)
    stepped = stepped.reshape(outputs, 9)
    assert np.array_equal(stepped[:, ~GROUPED], weights[:, ~GROUPED])
    for group in groups:
        before = weights[:, group].ravel()
        threshold = 0.8 * np.sqrt(mean_squares.reshape(outputs, 9)[:, group].sum())

        def cost(w, before=before, threshold=threshold):
            return 0.5 * np.sum((w - before) ** 2) + 0.5 * threshold * np.linalg.norm(w)

        found = minimize(cost, before, tol=1e-12).x
        assert np.allclose(stepped[:, group].ravel(), found, atol=1e-5)


def test_weak_groups_go_to_zero_and_empty_ones_stay_there():
    penalty = GroupPenalty.of(GROUPED, np.ones(9), 1.0)
    weights = np.full(9, 0.1)
    penalty.shrink(weights, 1.0)
    assert np.array_equal(weights, np.where(GROUPED, 0.0, 0.1))
    penalty.shrink(weights, 1.0)
    assert np.isfinite(weights).all()


def test_groups_are_the_cells_of_continuous_columns():
    grids = [
        CategoricalGrid("k", ("a", "b")),
        ContinuousGrid("x", 0, 1),
        UnusedGrid("u", "text"),
        ContinuousGrid("z", 0, 1),
    ]
    counts = [np.full(grid.n_counts, 10.0) for grid in grids]
    basis = build_basis(grids, counts, 1.0, 500.0, 4.0)
    runs = np.flatnonzero(np.diff(np.concatenate([[0], basis.cells, [0]]).astype(int)))
    categories = grids[0].n_counts
    width = (basis.n_features - categories) // 2
    assert runs.tolist() == [categories + 1, categories + width, categories + width + 1, basis.n_features]
    assert not build_basis(grids, counts, 1.0, 500.0, 4.0, cells=False).cells.any()


def test_cells_without_a_signal_lose_more():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.uniform(-1, 1, (8000, 3)), columns=["step", "noise", "more noise"])
    labels = (rng.random(8000) < 0.15 + 0.7 * (np.abs(frame["step"]) > 0.5)).astype(int)
    fits = {}
    for strength in (0.0, 0.08):
        model = RateConstrainedClassifier(
            epsilon=1.0,
            classes=(0, 1),
            feature_bounds=(-1, 1),
            config=TrainingConfig(group_penalty=strength),
            random_state=0,
        )
        session = session_of(model, frame, labels)
        session.run()
        basis, weights = session.basis, session.parameters[:-1]
        column = np.searchsorted(np.flatnonzero(~basis.cells), np.arange(len(weights)), side="right") - 1
        fits[strength] = [np.linalg.norm(weights[basis.cells & (column == place)]) for place in range(3)]
    kept = np.divide(fits[0.08], fits[0.0])
    assert kept[0] > 0.85
    assert kept[1:].max() < 0.75


def test_the_setting_is_checked():
    with pytest.raises(InvalidInput, match="group_penalty must be at least 0"):
        TrainingConfig(group_penalty=-1.0)
