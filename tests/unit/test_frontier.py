"""Linear classifiers without privacy: the solves that docs/frontier.md rests on."""

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from sklearn.linear_model import LogisticRegression

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks import exact, frontier, frontier_page


@pytest.fixture
def rows():
    random = np.random.default_rng(3)
    X = random.normal(size=(300, 4)) * [1.0, 2.0, 0.5, 1.0]
    first = random.random(300) < 0.4
    X[:, 0] += first
    y = X @ [1.0, -0.5, 1.0, 0.0] + random.logistic(size=300) > 0.3
    return exact.Rows(X, y, first)


def objective(rows, model, loss, l2):
    value, _ = loss(rows.sign * (rows.X @ model[:-1] + model[-1]))
    return value.mean() + l2 / 2 * np.sum(model[:-1] ** 2)


def slopes(rows, model, loss, l2):
    steps = 1e-5 * np.eye(len(model))
    return np.array(
        [(objective(rows, model + s, loss, l2) - objective(rows, model - s, loss, l2)) / 2e-5 for s in steps]
    )


def test_without_a_limit_it_is_logistic_regression(rows):
    found = exact.solve(rows, exact.logistic, 1e-2).model
    known = LogisticRegression(C=1 / (len(rows) * 1e-2), tol=1e-10, max_iter=10_000).fit(rows.X, rows.y)
    np.testing.assert_allclose(found, np.append(known.coef_[0], known.intercept_), atol=1e-4)


@pytest.mark.parametrize("name", exact.LOSSES)
def test_slopes_vanish_at_the_solution(rows, name):
    found = exact.solve(rows, exact.LOSSES[name], 1e-3)
    assert found.gradient < 1e-6
    np.testing.assert_allclose(slopes(rows, found.model, exact.LOSSES[name], 1e-3), 0.0, atol=1e-6)


@pytest.mark.parametrize("name", exact.LOSSES)
def test_limited_mean_scores_are_met_and_optimal(rows, name):
    loss, l2 = exact.LOSSES[name], 1e-3
    fractions = np.array([1.0, 0.5, 0.0, -0.5])
    between = rows.X[rows.first].mean(axis=0) - rows.X[~rows.first].mean(axis=0)
    whole = between @ exact.solve(rows, loss, l2).model[:-1]
    values = []
    for fraction, found in zip(fractions, exact.covariance_path(rows, loss, l2, fractions), strict=True):
        assert between @ found.model[:-1] == pytest.approx(fraction * whole, abs=1e-9)
        balance = slopes(rows, found.model, loss, l2) + found.multiplier * np.append(between, 0.0)
        np.testing.assert_allclose(balance, 0.0, atol=1e-6)
        values.append(objective(rows, found.model, loss, l2))
    assert np.all(np.diff(values) > 0)


def test_sparse_features_change_nothing(rows):
    sparse = exact.Rows(scipy.sparse.csr_array(rows.X), rows.y, rows.first)
    fractions = np.array([1.0, 0.0])
    for dense, thin in zip(
        exact.covariance_path(rows, exact.logistic, 1e-3, fractions),
        exact.covariance_path(sparse, exact.logistic, 1e-3, fractions),
        strict=True,
    ):
        np.testing.assert_allclose(dense.model, thin.model, atol=1e-6)
        assert rows.measure(dense.model) == pytest.approx(sparse.measure(thin.model))


def test_a_price_on_the_gap_lowers_it_and_none_changes_nothing(rows):
    free, *priced = exact.cost_path(rows, exact.logistic, 1e-3, np.array([0.0, 0.1, 0.2]))
    np.testing.assert_allclose(free.model, exact.solve(rows, exact.logistic, 1e-3).model, atol=1e-6)
    gaps = [rows.measure(each.model)[1] for each in (free, *priced)]
    assert gaps[0] > gaps[1] > gaps[2]


def test_a_line_shows_every_prediction_it_holds(rows):
    random = np.random.default_rng(0)
    model, direction = random.normal(size=(2, 5))
    scores, change = rows.scores(model), rows.X @ direction[:-1] + direction[-1]
    steps, errors, gaps = exact.along(rows, scores, change)
    assert len(steps) == len(rows) + 1  # no two rows cross together
    for step, error, gap in zip(steps, errors, gaps, strict=True):
        assert rows.measure(model + step * direction) == pytest.approx((error, gap), abs=1e-12)


def test_rows_that_cross_together_are_not_told_apart():
    X = np.array([[0.0], [0.0], [1.0]])
    rows = exact.Rows(X, np.array([True, False, True]), np.array([True, False, False]))
    _, errors, gaps = exact.along(rows, rows.scores(np.array([1.0, -0.5])), np.ones(3))
    assert errors.tolist() == pytest.approx([2 / 3, 1 / 3, 1 / 3])
    assert gaps.tolist() == pytest.approx([0.0, -0.5, 0.0])
    still = exact.along(rows, np.array([1.0, -1.0, -1.0]), np.zeros(3))
    assert [part.tolist() for part in still] == [[0.0], pytest.approx([1 / 3]), [1.0]]


def least_by_trying_all(rows, limit):
    """Least error over all lines through pairs of points in the plane, nudged to either side of each."""
    best = 1.0
    for i, j in itertools.combinations(range(len(rows)), 2):
        edge = rows.X[j] - rows.X[i]
        normal = np.array([-edge[1], edge[0]])
        side = rows.X @ normal - rows.X[i] @ normal
        for ends in itertools.product((False, True), repeat=2):
            positive = side > 0
            positive[[i, j]] = ends
            for predicted in (positive, ~positive):
                if abs(rows.share[predicted].sum()) <= limit:
                    best = min(best, float(np.mean(predicted != rows.y)))
    return best


@pytest.mark.parametrize("limit", [0.1, 1.0])
def test_the_search_finds_the_least_error_where_all_lines_can_be_tried(limit):
    random = np.random.default_rng(5)
    X = random.normal(size=(40, 2))
    first = random.random(40) < 0.5
    X[:, 1] += 1.5 * first
    y = X[:, 0] + X[:, 1] > 0.7
    X[:4] = [
        [-9.0, 3.0],
        [-8.0, 2.0],
        [-9.0, 1.0],
        [-7.0, 0.0],
    ]  # far on the wrong side: a convex loss gives in
    y[:4] = True
    rows = exact.Rows(X, y, first)
    free = exact.solve(rows, exact.logistic, 1e-3).model
    _, error, gap = exact.thresholds(rows, free)
    known = least_by_trying_all(rows, limit)
    assert error[np.abs(gap) <= limit].min() > known
    assert limit == 1.0 or known > least_by_trying_all(rows, 1.0)  # the limit costs something
    found = exact.descend(rows, free, limit, passes=30, random=np.random.default_rng(0), price=10.0)
    error, gap = rows.measure(found)
    assert abs(gap) <= limit
    assert error == pytest.approx(known)


def test_annealing_beats_its_convex_start_on_what_it_minimises(rows):
    start = exact.solve(rows, exact.logistic, 1e-3).model
    for price in (0.0, 0.2):
        before, after = (
            error + price * gap
            for error, gap in map(rows.measure, (start, exact.anneal(rows, start, price, frontier.STEEPNESS)))
        )
        assert after < before


def test_wider_limits_never_cost(rows):
    models = [each.model for each in exact.cost_path(rows, exact.logistic, 1e-3, np.array([0.0, 0.1]))]
    limits = [0.01, 0.05, 0.1, 0.5]
    found = frontier.least(rows, models, limits)
    errors = [error for error, _ in found]
    assert errors == sorted(errors, reverse=True)
    for limit, (error, model) in zip(limits, found, strict=True):
        measured = rows.measure(model)
        assert measured[0] == pytest.approx(error)
        assert abs(measured[1]) <= limit


def test_named_splits_cover_all_rows_once():
    for name in ("authors", "fermi", "3"):
        train, test = frontier.rows_of(1000, name)
        assert len(train) == 750
        assert sorted([*train, *test]) == list(range(1000))
    assert set(frontier.rows_of(1000, "authors")[1]) != set(frontier.rows_of(1000, "fermi")[1])


def test_verdicts_tell_reached_from_hindsight_from_beyond():
    assert frontier_page.verdict(0.05, 0.02, (0.051, 0.021), 0.049).startswith("reached")
    assert frontier_page.verdict(0.05, 0.02, (0.051, 0.031), 0.049).startswith("within reach")
    assert frontier_page.verdict(0.05, 0.02, (0.054, 0.021), 0.053).startswith(
        "beyond all models found, by +0.003"
    )


def test_our_error_at_a_gap_is_read_off_the_line_between_our_points():
    points = [(0.01, 0.02, 0.06), (0.02, 0.04, 0.05), (0.03, 0.05, 0.055)]
    assert frontier_page.ours_at(points, 0.03)[0] == pytest.approx(0.055)
    assert frontier_page.ours_at(points, 0.09)[0] == pytest.approx(0.05)
    assert frontier_page.ours_at(points, 0.01)[0] is None


def test_runs_within_a_gap_that_no_mean_reaches():
    runs = [
        {"slack": slack, "epsilon": 1.0, "split": "authors", "test_error": error, "test_gap": gap}
        for slack, error, gap in [(0.1, 0.06, 0.002), (0.1, 0.08, 0.03), (0.2, 0.05, 0.02), (0.2, 0.05, 0.06)]
    ]
    assert frontier_page.runs_within(runs, 0.005) == "; 1 of 2 runs within 0.005: 0.0600"
    assert frontier_page.runs_within(runs, 0.001) == ""
    assert frontier_page.runs_within(runs, 0.017) == ""  # the mean is
    assert frontier_page.runs_within(runs[:1] + runs[2:], 0.001) == ""
    assert frontier_page.runs_within([], 0.005) == ""
