"""Peers on small cases with known answers, derived by hand or published."""

import itertools
import math
import subprocess
import sys
from pathlib import Path

import dp_accounting
import numpy as np
import pytest
from dp_accounting import pld
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit
from scipy.stats import kstest, laplace

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.peers import METHODS, external, fermi, jagielski, tran
from benchmarks.peers.base import RawScaler
from benchmarks.peers.engine import Descent, iterates
from benchmarks.peers.others import expected
from benchmarks.problem import Part, Task, measure

from ratewise.data.schema import Category, Number, Schema
from ratewise.datasets.tables import table
from ratewise.mechanisms.randomness import RandomStreams


def schema_of(numbers, categories, sexes=("female", "male")):
    columns = {name: Number(*bounds) for name, bounds in numbers.items()}
    columns |= {name: Category(values) for name, values in categories.items()}
    return Schema(columns, label="y", classes=(0, 1), groups={"sex": Category(sexes)})


def joint(seed, groups=3, classes=4):
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.ones(groups))
    return shares[:, None] * rng.dirichlet(np.ones(classes), groups)


# ---------------------------------------------------------------------------------------- DP-FERMI


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10_000))
def test_the_penalty_at_its_best_w_is_the_measure_of_dependence(seed):
    P = joint(seed)
    W, shares = fermi.best_response(P), P.sum(axis=1)
    value = np.sum(P * fermi.costs(W, shares)) - 1.0
    assert value == pytest.approx(fermi.ermi(P), abs=1e-12)
    assert np.abs(fermi.ascent(W, P, shares)).max() < 1e-12
    moved = W + 0.01 * np.random.default_rng(seed).standard_normal(W.shape)
    assert np.sum(P * fermi.costs(moved, shares)) - 1.0 < value


def test_dependence_of_two_groups_and_two_classes_is_a_squared_gap():
    shares, rates = np.array([0.3, 0.7]), np.array([0.2, 0.5])
    P = shares[:, None] * np.column_stack([1 - rates, rates])
    p = shares @ rates
    assert fermi.ermi(P) == pytest.approx(0.3 * 0.7 * 0.3**2 / (p * (1 - p)))


def test_ascent_is_the_gradient_and_finds_the_best_w():
    P = joint(3, 2, 2)
    shares = P.sum(axis=1)
    W = np.ones((2, 2))
    step = np.zeros((2, 2))
    step[0, 1] = 1e-6
    slope = np.sum(P * (fermi.costs(W + step, shares) - fermi.costs(W - step, shares))) / 2e-6
    assert slope == pytest.approx(fermi.ascent(W, P, shares)[0, 1], rel=1e-6)
    penalty = fermi.Ermi(1.0, 2)
    for _ in range(400):
        penalty.update(1000 * P)
    assert penalty.W[0] == pytest.approx(fermi.best_response(P), abs=1e-6)


@pytest.mark.parametrize(("n", "smallest", "sheet"), [(4406, 0.32, 0.208), (22_500, 0.396, 0.084)])
def test_published_noise_accounts_to_more_than_it_claims(n, smallest, sheet):
    batch, delta = 1024, 1 / n**2
    formula, updates = 200 * math.ceil(n / batch), 200 * (n // batch)
    noise = math.sqrt(16 * formula * math.log(1 / delta) / (n**2 * smallest))
    assert noise == pytest.approx(sheet, abs=0.002)
    found = fermi.accounted_epsilon(batch, n, updates, noise, smallest, delta)
    # both releases of one batch in one: sqrt(2) less noise than ``q sqrt(2 T ln(1/delta))`` of either
    ratio = batch / n * math.sqrt(2 * formula * math.log(1 / delta))
    event = dp_accounting.PoissonSampledDpEvent(batch / n, dp_accounting.GaussianDpEvent(ratio / math.sqrt(2)))
    accountant = pld.PLDAccountant().compose(event, updates)
    assert found == pytest.approx(accountant.get_epsilon(delta), rel=2e-3)
    assert found > 1.03


def test_the_published_form_draws_the_noise_of_the_sheet_and_records_what_it_drew():
    part = toy(n=4406)
    model = fermi.published(part, 0.5, 1.0, 1e-5, 0, epochs=200, rates=(0.0, 0.0))
    share = np.bincount(part.groups).min() / len(part)
    expected_noise = math.sqrt(16 * 1000 * 2 * math.log(4406) / share) / 4406
    assert model.details["noise_w"] == pytest.approx(expected_noise)
    assert model.details["noise_theta"] == pytest.approx(25 * expected_noise)
    assert model.details["updates"] == 800
    booked = fermi.accounted_epsilon(1024, 4406, 800, expected_noise, share, 4406.0**-2)
    assert model.epsilon == pytest.approx(booked)


def test_the_published_form_sees_one_cell():
    """With next to no noise its w settles where the penalty of class 1 and the first group is largest."""
    part = toy()
    plain, pulled = (
        fermi.published(part, weight, 100.0, 1e-5, 0, clip=3.0, epochs=400, batch=4000, rates=(0.5, 0.5))
        for weight in (0.0, 3.0)
    )
    male = part.groups == 1
    share = male.mean()
    rates = []
    for model in (plain, pulled):
        soft = model.predict(part)[1]
        # the best value of the one cell: P(1, male)^2 / (P(1) share) - 1
        rates.append(np.mean(soft * male) ** 2 / (soft.mean() * share))
    assert pulled.details["w"] == pytest.approx(np.mean(soft * male) / (math.sqrt(share) * soft.mean()), rel=0.02)
    assert rates[1] < rates[0]


def test_credit_card_columns_of_the_published_form():
    import pandas as pd

    schema = schema_of(
        {"AGE": (0, 100)},
        {"EDUCATION": (0, 1, 4, 5, 6), "MARRIAGE": (0, 1, 3), "PAY_0": (-2, 0, 9)},
        ("male", "female"),
    )
    frame = pd.DataFrame(
        {"AGE": [20, 30, 40], "EDUCATION": [0, 1, 6], "MARRIAGE": [0, 3, 1], "PAY_0": [0, 0, -2], "y": [0, 1, 0]}
    )
    made = table(frame, frame["y"], {"sex": ["male", "male", "female"]}, schema)
    found = made.X @ fermi.authors_columns(made)
    # age; education 4 (met first through 0), 1; marriage 3, 1; pay -2, 0
    assert found.tolist() == [[20, 1, 0, 1, 0, 0, 1], [30, 0, 1, 1, 0, 0, 1], [40, 1, 0, 0, 1, 1, 0]]


def test_raw_scaler_leaves_categories_alone():
    X = np.array([[1.0, 0.0], [3.0, 1.0]])
    assert RawScaler(X, 1)(X).tolist() == [[-1, 0], [1, 1]]
    assert RawScaler(X)(X).tolist() == [[-1, -1], [1, 1]]


# ------------------------------------------------------------------------------------------- Tran


def test_group_gaps_of_the_sheet():
    everyone = np.ones((2, 2))
    scores = np.array([0.9, 0.7, 0.3, 0.1])
    gaps, signs = tran.group_gaps(scores, np.array([0, 0, 1, 1]), everyone)
    assert gaps == pytest.approx([0.3, 0.3])
    assert signs.tolist() == [1, -1]
    moved, signs = tran.group_gaps(scores, np.array([0, 1, 1, 1]), everyone)
    assert moved == pytest.approx([0.4, 0.5 - 1.1 / 3])
    assert signs.tolist() == [1, -1]
    by_label = np.kron(np.eye(2), everyone)
    gaps, signs = tran.group_gaps(np.array([0.9, 0.5, 0.1, 0.3]), np.arange(4), by_label)
    assert gaps == pytest.approx([0.2, 0.2, 0.1, 0.1])
    assert signs.tolist() == [1, -1, -1, 1]


@pytest.mark.parametrize("labelled", [False, True])
def test_gradient_of_pfld_by_differences(labelled):
    rng = np.random.default_rng(4)
    n, k = 60, 3
    x, y, groups = rng.normal(size=(n, 4)), rng.integers(0, 2, n), rng.integers(0, k, n)
    cells = groups + k * y if labelled else groups
    blocks = 2 if labelled else 1
    reference = np.kron(np.eye(blocks), np.ones((k, k)))
    lam, sign = rng.random(k * blocks), rng.choice([-1.0, 1.0], k * blocks)
    theta = rng.normal(size=4)

    def objective(theta):
        h = expit(x @ theta)
        total = 0.0
        for c in range(k * blocks):
            among = (y == c // k) if labelled else np.ones(n, bool)
            total += lam[c] * sign[c] * (h[cells == c].mean() - h[among].mean())
        return total

    soft, norms = expit(x @ theta), np.linalg.norm(x, axis=1)
    shares = np.bincount(cells, minlength=k * blocks) / n
    label_shares = np.repeat(np.bincount(y) / n, k) if labelled else np.ones(k)
    pushes = reference @ (lam * sign)
    found = tran.pulled_sum(x, norms, soft, (lam * sign / shares)[cells], 1e9)
    found = (found - tran.reference_sum(x, soft, cells, pushes, label_shares)) / n
    steps = 1e-6 * np.eye(4)
    slope = [(objective(theta + step) - objective(theta - step)) / 2e-6 for step in steps]
    assert found == pytest.approx(slope, abs=1e-8)


def test_boundary_term_of_two_classes():
    f = np.array([0.1, 0.5, 0.8])
    assert tran.boundary(f) == pytest.approx(1 - f**2 - (1 - f) ** 2)
    penalty = tran.Mitigation(2.0, 2)
    penalty.update(np.array([[60.0, 40.0], [90.0, 10.0]]))
    z, h = np.log(f / (1 - f)), 1e-6
    for cell in (0, 1):
        cells = np.full(3, cell)

        def u(z):
            return tran.boundary(1 / (1 + np.exp(-z)))

        slope = (u(z + h) - u(z - h)) / (2 * h)
        # signs +, -; shares a half each: the weight of u is 2 * (+-1 / 0.5 - 0), scaled by 1 / 3
        assert penalty.residual(f, cells) == pytest.approx((4 if cell == 0 else -4) / 3 * slope, abs=1e-6)


# --------------------------------------------------------------------------------------- Jagielski


def two_groups():
    """P(a) = P(y) = 1/2, independent; (fpr, tpr) = (.2, .8) and (.4, .6)."""
    shares = np.zeros((2, 2, 2))
    for a, (fpr, tpr) in enumerate([(0.2, 0.8), (0.4, 0.6)]):
        shares[1, a] = np.array([fpr, tpr]) / 4
        shares[0, a] = np.array([1 - fpr, 1 - tpr]) / 4
    return shares


@pytest.mark.parametrize(("gamma", "error"), [(0, 0.40), (0.05, 0.375), (0.1, 0.35), (0.2, 0.30), (0.5, 0.30)])
def test_post_processing_errors_of_the_sheet(gamma, error):
    chosen, found = jagielski.solve(two_groups(), gamma)
    assert found == pytest.approx(error, abs=1e-9)
    assert (chosen >= 0).all()
    assert (chosen <= 1).all()


def cells_of_the_sheet():
    """`two_groups` as 400 rows whose one feature is the cell (prediction, group)."""
    import pandas as pd

    schema = schema_of({}, {"cell": (0, 1, 2, 3)})
    shares = np.rint(400 * two_groups()).astype(int)
    guess, group, y = (np.repeat(code.ravel(), shares.ravel()) for code in np.indices((2, 2, 2)))
    frame = pd.DataFrame({"cell": 2 * guess + group, "y": y})
    made = table(frame, frame["y"], {"sex": np.where(group == 1, "male", "female")}, schema)
    return Part(Task("adult", "equalized_odds"), made, np.arange(400))


def test_reductions_of_the_sheet():
    part = cells_of_the_sheet()
    model = jagielski.reductions(part, 0.1, 1e7, 1e-5, 0, rounds=200)
    found = measure(part, model.predict(part)[0])
    assert found["error"] == pytest.approx(0.396, abs=2e-3)
    assert found["violation"] == pytest.approx(0.008, abs=2e-3)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10_000))
def test_one_swap_moves_the_learners_sum_by_its_reach_at_most(seed):
    rng = np.random.default_rng(seed)
    k, n = 3, 5
    X = np.column_stack([rng.choice([0.0, 0.5, 1.0], (n, 2)), np.eye(2)[rng.integers(0, 2, n)], np.ones(n)])
    X[0, :2] = 1.0  # a row as long as the schema allows
    y, groups = rng.integers(0, 2, n), rng.integers(0, k, n)
    pull = jagielski.pulls(rng.normal(size=(2, k, 2)), rng.uniform(1, 9, (k, 2)), 10.0)

    def summed(groups):
        return X.T @ ((1 - 2 * y) / n + pull[groups, y])

    moves = []
    for row, group in itertools.product(range(n), range(k)):
        swapped = np.where(np.arange(n) == row, group, groups)
        moves.append(np.abs(summed(swapped) - summed(groups)).sum())
    bound = jagielski.reach(pull, 4.0)
    assert max(moves) <= bound * (1 + 1e-9)
    # and some swap of the longest row, with the right label, reaches it
    widest = int(np.argmax(np.ptp(pull, axis=0)))
    ends = pull[:, widest].max() - pull[:, widest].min()
    assert np.abs(X[0] * ends).sum() == pytest.approx(bound)


def test_pulls_are_the_slopes_of_the_weighted_gaps():
    rng = np.random.default_rng(1)
    k, bound = 3, 10.0
    theta, sizes, hits = rng.normal(size=(2, k, 2)), rng.uniform(10, 20, (k, 2)), rng.uniform(0, 10, (k, 2))
    scale = 1 + sum(math.exp(theta[s, a, y]) for s in (0, 1) for a in (1, 2) for y in (0, 1))

    def weighted(hits):
        total = 0.0
        for s, a, y in itertools.product((0, 1), (1, 2), (0, 1)):
            gap = hits[a, y] / sizes[a, y] - hits[0, y] / sizes[0, y]
            total += bound * math.exp(theta[s, a, y]) / scale * (gap if s == 0 else -gap)
        return total

    pull = jagielski.pulls(theta, sizes, bound)
    for a, y in itertools.product(range(k), (0, 1)):
        one_more = hits.copy()
        one_more[a, y] += 1.0
        assert pull[a, y] == pytest.approx(weighted(one_more) - weighted(hits))


def test_noise_of_reductions_has_mean_zero_and_the_stated_scale(monkeypatch):
    rng = np.random.default_rng(0)
    drawn = jagielski.release(np.full(40_000, 7.0), 3.0, 2.0, rng) - 7.0
    assert kstest(drawn, laplace(0.0, 6.0).cdf).pvalue > 1e-3
    assert kstest(drawn, laplace(0.0, 6.3).cdf).pvalue < 1e-3
    asked, true = [], jagielski.release

    def watched(values, sensitivity, noise, rng):
        asked.append((len(values), sensitivity, noise))
        return true(values, sensitivity, noise, rng)

    monkeypatch.setattr(jagielski, "release", watched)
    part = toy("equalized_odds", n=400)
    model = jagielski.reductions(part, 0.1, 5.0, 1e-5, 0, rounds=4)
    assert len(asked) == 9
    assert {sensitivity for size, sensitivity, _ in asked if size == 4} == {2.0}
    assert all(sensitivity > 0 for _, sensitivity, _ in asked[3::2])
    (noise,) = {noise for _, _, noise in asked}
    assert model.epsilon <= 5.0
    assert 9 / noise >= model.epsilon  # no better than plain composition claims, and not worse


# ------------------------------------------------------------------------------ on made-up tables

SCHEMA = schema_of({"a": (0, 1), "b": (0, 1)}, {})


def toy(constraint="demographic_parity", n=4000, seed=0):
    import pandas as pd

    rng = np.random.default_rng(seed)
    male = rng.random(n) < 0.6
    a, b = rng.random(n), np.clip(rng.random(n) * 0.6 + 0.4 * male, 0, 1)
    y = (a + b + 0.2 * rng.standard_normal(n) > 1.1).astype(int)
    frame = pd.DataFrame({"a": a, "b": b, "y": y})
    made = table(frame, frame["y"], {"sex": np.where(male, "male", "female")}, SCHEMA)
    return Part(Task("adult", constraint), made, np.arange(n))


SETTINGS = {
    "raco": {"batch": 200},
    "dp_sgd": {"batch": 200},
    "pfld": {"epochs": 3},
    "jagielski_reductions": {"rounds": 5},
    "fairlearn": {"max_iter": 5},
    "fairlearn_xgboost": {"max_iter": 3, "base": "xgboost"},
    "xgboost": {"n_estimators": 5},
    "ours_network": {"epochs": 5},
    **{name: {"steps": 30} for name in ("ours", "ours_undeclared", "ours_linear")},
}
KNOBS = {"fermi": 2.0, "mitigation": 1.0, "pfld": 0.3, "dp_sgd": None}
IN_PROCESS = [name for name, system in METHODS.items() if system.fit.__module__ != external.__name__]


@pytest.mark.parametrize("name", IN_PROCESS)
def test_every_method_learns_and_states_what_it_spent(name):
    method = METHODS[name]
    part = toy("equalized_odds" if name.startswith("jagielski") else "demographic_parity")
    budget = 50.0 if name == "jagielski_reductions" else 2.0
    model = method.fit(part, KNOBS.get(name, 0.05), budget, 1e-5, 1, **SETTINGS.get(name, {}))
    positive, soft = model.predict(part)
    found = measure(part, positive, soft)
    assert ((positive >= 0) & (positive <= 1)).all()
    base = min(part.y.mean(), 1 - part.y.mean())
    assert found["error"] < base
    if not method.private:
        assert model.epsilon == float("inf")
    else:
        assert 0.9 * budget < model.epsilon <= budget


def test_a_heavier_penalty_narrows_the_gap():
    part = toy()
    gaps = []
    for weight in (0.0, 10.0):
        model = METHODS["fermi"].fit(part, weight, 5.0, 1e-5, 0)
        gaps.append(measure(part, *model.predict(part))["violation"])
    assert gaps[1] < 0.5 * gaps[0]


class Recorder:
    """A penalty that keeps what is released."""

    def __init__(self, penalty):
        self.penalty, self.loss_weight, self.released = penalty, penalty.loss_weight, []

    def residual(self, soft, cells):
        return self.penalty.residual(soft, cells)

    def counted(self, soft):
        return self.penalty.counted(soft)

    def update(self, released):
        self.released.append(released)
        self.penalty.update(released)


def first_release(Z, y, cells, penalty, clip):
    """Return the sum of gradients and the counts of the first step, without noise, all rows in it."""
    settings = Descent(len(Z), 1.0, steps=1, clip=clip, learning_rate=1.0, momentum=0.0)
    watched = Recorder(penalty)
    (theta,) = iterates(Z, y, cells, 2, watched, settings, RandomStreams.from_seed(0))
    return -theta * len(Z), watched.released[0]


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10_000), st.sampled_from([0.1, 1.0]), st.booleans())
def test_one_row_changes_both_releases_by_their_sensitivity_at_most(seed, clip, near):
    rng = np.random.default_rng(seed)
    Z, y, cells = rng.normal(0, 5, (6, 3)), rng.integers(0, 2, 6), rng.integers(0, 2, 6)

    def driven():
        penalty = tran.Mitigation(5.0, 2) if near else fermi.Ermi(5.0, 2)
        penalty.update(np.array([[60.0, 40.0], [90.0, 10.0]]))
        return penalty

    gradient, counts = first_release(Z, y, cells, driven(), clip)
    less, fewer = first_release(Z[1:], y[1:], cells[1:], driven(), clip)
    assert np.linalg.norm(gradient - less) <= clip * (1 + 1e-9)
    assert np.abs(counts - fewer).sum() <= 1 + 1e-9


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10_000), st.sampled_from([0.1, 1.0]))
def test_a_row_of_pfld_adds_no_more_than_its_pull(seed, clip):
    rng = np.random.default_rng(seed)
    x, soft, pull = rng.normal(0, 5, (5, 3)), rng.random(5), rng.normal(0, 3, 5)
    norms = np.linalg.norm(x, axis=1)
    whole = tran.pulled_sum(x, norms, soft, pull, clip)
    rest = tran.pulled_sum(x[1:], norms[1:], soft[1:], pull[1:], clip)
    assert np.linalg.norm(whole - rest) <= clip * abs(pull[0]) * (1 + 1e-9)


def test_weight_zero_is_plain_training_whatever_the_penalty():
    part = toy()
    models = [METHODS[name].fit(part, 0.0, 5.0, 1e-5, 0) for name in ("fermi", "mitigation")]
    first, second = (model.predict(part)[1] for model in models)
    assert np.array_equal(first, second)


def test_weight_zero_without_noise_is_logistic_regression():
    """All rows in every sample, no clipping, no noise: the loss is minimised."""
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(2)
    X = rng.normal(0, 1, (300, 3))
    y = (X @ [1.0, -1.0, 0.5] + rng.logistic(size=300) > 0).astype(int)
    Z = np.hstack([X, np.ones((300, 1))])
    settings = Descent(300, 1.0, steps=400, clip=1e9, learning_rate=1.0)
    *_, theta = iterates(Z, y, np.zeros(300, int), 2, fermi.Ermi(0.0, 2), settings, RandomStreams.from_seed(0))
    exact = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(X, y)
    assert theta == pytest.approx([*exact.coef_[0], *exact.intercept_], abs=1e-3)


def test_measured_rates_are_those_of_the_rows():
    part = toy()
    positive = np.random.default_rng(0).random(len(part))
    found = measure(part, positive)
    male = part.sensitive["sex"].to_numpy() == "male"
    assert found["violation"] == pytest.approx(abs(positive[male].mean() - positive[~male].mean()), abs=1e-6)
    assert found["error"] == pytest.approx(np.mean(np.abs(part.y - positive)))
    odds = measure(toy("equalized_odds"), positive)
    gaps = [abs(positive[male & (part.y == k)].mean() - positive[~male & (part.y == k)].mean()) for k in (0, 1)]
    assert odds["violation"] == pytest.approx(max(gaps), abs=1e-6)
    misses = measure(toy("false_negative_rate"), positive)
    assert misses["violation"] == pytest.approx(1 - positive[part.y == 1].mean(), abs=1e-6)


def test_area_under_the_curve_is_the_share_of_pairs_in_order():
    part = toy(n=400)
    soft = np.random.default_rng(1).random(400)
    ones, zeros = soft[part.y == 1], soft[part.y == 0]
    assert measure(part, soft, soft)["auc"] == pytest.approx(np.mean(ones[:, None] > zeros))
    both = np.column_stack([1 - soft, soft])
    assert measure(part, both, both) == measure(part, soft, soft)


# ----------------------------------------------------------------------------- in other processes

ECHO = """
import numpy as np
from serve import one_hot, serve

def fit(rows, request):
    print("libraries print")
    if request["settings"].get("fail"):
        raise ValueError("no")
    mean = rows["y"].mean() + request["seed"]
    return lambda table: np.column_stack([one_hot(table, request)[:, 0], np.full(len(table), mean)]), request["epsilon"]

serve(fit)
"""


def test_a_process_gets_raw_rows_and_returns_predictions(tmp_path, monkeypatch):
    (tmp_path / "serve.py").write_text((external.PROCESSES / "serve.py").read_text())
    (tmp_path / "echo.py").write_text(ECHO)
    monkeypatch.setattr(external, "PROCESSES", tmp_path)
    monkeypatch.setattr(external, "python_of", lambda name: sys.executable)
    part = toy(n=50)
    process = external.Process("echo")
    assert process.fit(part, epsilon=0.5, seed=3, settings={})["epsilon"] == 0.5
    found = process.predict(part)
    assert found[:, 0] == pytest.approx(part.X[:, 0], abs=1e-6)
    assert found[:, 1] == pytest.approx(part.y.mean() + 3)
    with pytest.raises(RuntimeError, match="ValueError: no"):
        process.fit(part, epsilon=0.5, seed=3, settings={"fail": True})


def test_an_environment_that_cannot_be_made_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("RATEWISE_PEERS", str(tmp_path / "cache"))
    monkeypatch.setattr(external, "PROCESSES", tmp_path)
    (tmp_path / "none.txt").write_text("a-package-that-is-nowhere==1.0\n")
    external.python_of.cache_clear()
    with pytest.raises(external.Missing, match="none cannot be installed"):
        external.python_of("none")


def test_models_of_marginals_are_those_of_sums_over_all_cells():
    """Needs the environment of AIM and MST (``python -m benchmarks environments``)."""
    python = external.cache() / "synthesis" / "bin" / "python"
    if not python.exists():
        pytest.skip("the environment of AIM and MST is not installed")
    script = Path(__file__).parent / "graphical_model_process.py"
    done = subprocess.run([python, script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# --------------------------------------------------------------------------------------- Fairlearn


class LeastSquares:
    """Weighted least squares, cut at a half."""

    def fit(self, X, y, sample_weight):
        root = np.sqrt(np.asarray(sample_weight))[:, None]
        self.coef = np.linalg.lstsq(X * root, np.asarray(y) * root[:, 0], rcond=None)[0]
        return self

    def predict(self, X):
        return (X @ self.coef > 0.5).astype(int)

    def get_params(self, deep=True):
        return {}

    def set_params(self, **parameters):
        return self


@pytest.mark.filterwarnings("ignore:Setting a")  # how Fairlearn uses pandas
@pytest.mark.parametrize(
    ("kind", "bound", "error"),
    [
        ("DemographicParity", 0.10, 0.25),
        ("DemographicParity", 0.02, 0.332261),
        ("EqualizedOdds", 0.10, 0.309333),
        ("EqualizedOdds", 0.02, 0.421531),
    ],
)
def test_expected_predictions_of_the_published_case(kind, bound, error):
    from fairlearn import reductions

    digits = [np.array(list(t.replace(" ", "")), int) for t in ("0110101 0111101 001011",
              "0000100 0000011 111111", "0110100 0010111 001111")]  # fmt: skip
    X, y, groups = (np.column_stack([*digits[:2], np.ones(20)]), digits[2], np.repeat(["A", "B", "C"], [7, 7, 6]))
    constraint = getattr(reductions, kind)(difference_bound=bound)
    model = reductions.ExponentiatedGradient(LeastSquares(), constraint)
    model.fit(X, y, sensitive_features=groups)
    p = expected(model, X)
    assert np.mean(p * (1 - y) + (1 - p) * y) == pytest.approx(error, abs=1e-4)
    among = [np.ones(20, bool)] if kind == "DemographicParity" else [y == 0, y == 1]
    gap = max(abs(p[rows & (groups == g)].mean() - p[rows].mean()) for rows in among for g in "ABC")
    assert gap == pytest.approx(bound, abs=1e-4)


def test_fairlearn_is_asked_for_the_gap_between_groups():
    """A bound of gap * largest share on the distance to the overall rate is the gap between two groups."""
    part = toy()
    free, bound = (
        measure(part, METHODS["fairlearn"].fit(part, gap, None, 1e-5, 0).predict(part)[0])["violation"]
        for gap in (1.0, 0.10)
    )
    assert free > 0.15
    assert bound == pytest.approx(0.10, abs=0.005)
