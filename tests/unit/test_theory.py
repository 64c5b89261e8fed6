"""The closed forms, against numbers derived another way: exact laws, Monte Carlo, a real run."""

import math

import numpy as np
import pytest
from scipy import stats

from ratewise.accounting import TrainingEvent, delta, epsilon, theory
from ratewise.exceptions import InvalidInput, InvalidType


def spent(noise, rate, steps, budget_delta):
    event = TrainingEvent(rate, steps, noise.gradient_noise, noise.laplace_scale, "laplace")
    return epsilon(event, budget_delta)


# --- privacy ------------------------------------------------------------


def test_paper_noise_is_the_formula():
    noise = theory.paper_noise(2.0, 1e-5, 0.1, 400)
    log = math.log(400 / 1e-5)
    assert noise.laplace_scale == pytest.approx(2 * 0.1 * math.sqrt(400 * log) / 2)
    assert noise.gradient_noise == pytest.approx(10 * 0.1 * 20 * log / 2)
    # sigma of the paper, for C = 3 and |D| = 5000
    assert noise.gradient_std(3.0, 0.1 * 5000) == pytest.approx(10 * 3 * 20 * log / (5000 * 2))


def test_paper_noise_first_entries_of_the_maxima():
    noise = theory.paper_noise(0.5, 1e-5, 0.001, 10)
    assert noise.laplace_scale == pytest.approx(4.0)
    assert noise.gradient_noise == pytest.approx(20 * math.log(1e6))


@pytest.mark.parametrize("rate", [0.001, 0.02, 0.3, 1.0])
@pytest.mark.parametrize("steps", [1, 30, 2000])
@pytest.mark.parametrize("target", [0.1, 1.0, 8.0])
def test_proven_noise_keeps_its_promise(rate, steps, target):
    noise = theory.proven_noise(target, 1e-5, rate, steps)
    assert spent(noise, rate, steps, 1e-5) <= target


def test_paper_noise_breaks_its_promise_for_large_epsilon():
    """Shown by exact binomials: the Laplace release alone, seen only as "loss is largest, or not"."""
    target, budget, rate, steps = 7.0, 1e-9, 0.05, 15
    noise = theory.paper_noise(target, budget, rate, steps)
    without = math.exp(-1 / noise.laplace_scale) / 2
    with_row = (1 - rate) * without + rate / 2
    counts = np.arange(steps + 1)
    gain = stats.binom.pmf(counts, steps, with_row) - math.exp(target) * stats.binom.pmf(counts, steps, without)
    least_delta = gain[gain > 0].sum()
    assert least_delta > 10 * budget
    assert spent(noise, rate, steps, budget) > 1.15 * target


def test_paper_noise_vanishes_when_delta_is_near_one():
    noise = theory.paper_noise(1.0, 0.99, 1.0, 1)
    event = TrainingEvent(1.0, 1, noise.gradient_noise, noise.laplace_scale, "laplace")
    assert delta(event, 1.0) > 0.99


@pytest.mark.parametrize("rate", [0.001, 0.05, 1.0])
@pytest.mark.parametrize("steps", [1, 500])
def test_paper_noise_keeps_it_for_epsilon_up_to_one(rate, steps):
    for target in (0.1, 1.0):
        assert spent(theory.paper_noise(target, 1e-5, rate, steps), rate, steps, 1e-5) <= target


def test_chain_of_inequalities_in_the_proof():
    """Every constant of the proof of `proven_noise`, at the edge of its range and inside."""
    for log in (math.log(100), 8.0, 30.0):
        for target in (0.01, 1.0, log):
            steps, rate = 50, 0.2
            budget = steps / math.exp(log)
            noise = theory.proven_noise(target, budget * (1 - 1e-12), rate, steps)
            gaussian = math.sqrt(2 * math.log(2.5 * steps / budget)) / noise.gradient_noise
            assert gaussian < 1  # where the classical Gaussian mechanism is proven
            sampled = math.log1p(rate * math.expm1(1 / noise.laplace_scale + gaussian))
            total = sampled * math.sqrt(2 * steps * math.log(2 / budget)) + steps * sampled**2 / 2
            assert total <= target


def test_proven_noise_refuses_what_it_cannot_prove():
    with pytest.raises(InvalidInput, match="epsilon must be at most"):
        theory.proven_noise(20.0, 1e-5, 0.1, 100)
    with pytest.raises(InvalidInput, match="delta must be at most"):
        theory.proven_noise(1.0, 0.5, 0.1, 10)


@pytest.mark.parametrize("function", [theory.paper_noise, theory.proven_noise])
@pytest.mark.parametrize("bad", [(0, 1e-5, 0.1, 10), (1, 0, 0.1, 10), (1, 1e-5, 1.1, 10), (1, 1e-5, 0.1, 0)])
def test_noise_refuses_bad_arguments(function, bad):
    with pytest.raises(InvalidInput):
        function(*bad)
    with pytest.raises(InvalidType):
        function("1", 1e-5, 0.1, 10)


# --- concentration ------------------------------------------------------------


def binomial_miss(rows, rate, error):
    """Exact probability that the sampled rate of all-ones rows is off by more than `error`."""
    law = stats.binom(rows, rate)
    middle = rows * rate
    return law.sf(np.floor(middle * (1 + error))) + law.cdf(np.ceil(middle * (1 - error)) - 1)


@pytest.mark.parametrize("rows", [100, 2000, 100_000])
@pytest.mark.parametrize("rate", [0.01, 0.3, 0.9])
@pytest.mark.parametrize("failure", [0.3, 0.05, 1e-4])
def test_sampled_rate_error_holds_for_binomials(rows, rate, failure):
    assert binomial_miss(rows, rate, theory.sampled_rate_error(rate, rows, failure)) <= failure


def test_the_lemma_as_printed_is_too_small():
    printed = math.sqrt(math.log(1 / 0.05) / (0.01 * 100_000))
    assert binomial_miss(100_000, 0.01, printed) > 0.08


def test_sampled_rate_error_is_tight_for_many_rows():
    """A Gaussian limit: the bound is the two-sided Chernoff quantile of the limit law."""
    error = theory.sampled_rate_error(0.1, 10**9, 0.05)
    assert error == pytest.approx(math.sqrt(2 * 0.9 * math.log(40) / 1e8), rel=1e-3)


def test_subsample_errors_by_simulation():
    rng = np.random.default_rng(5)
    rows = np.abs(rng.normal(size=(300, 4)))
    rows /= np.linalg.norm(rows, axis=1).max()
    values = (rng.random(300) < 0.5).astype(float)
    size, failure = 40, 0.1
    picks = rng.random((4000, 300)).argsort(axis=1)[:, :size]
    vector = np.linalg.norm(rows[picks].mean(axis=1) - rows.mean(axis=0), axis=1)
    scalar = np.abs(values[picks].mean(axis=1) - values.mean())
    assert (vector > theory.subsample_mean_error(size, failure)).mean() <= failure
    assert (scalar > theory.subsample_rate_error(size, failure)).mean() <= failure
    # the bounds are within a small factor of what is seen, so halving them would be noticed
    assert np.quantile(scalar, 1 - failure) > 0.5 * theory.subsample_rate_error(size, failure)


def test_subsample_mean_error_covers_orthogonal_rows():
    """Rows that are unit vectors of 300 dimensions: the error of every sample of 40 is known."""
    assert theory.subsample_mean_error(40, 0.1) > math.sqrt(1 / 40 - 1 / 300)


@pytest.mark.parametrize("rows", [20, 200, 5000])
@pytest.mark.parametrize("rate", [0.01, 0.2])
def test_normaliser_failure_bounds_the_exact_binomial(rows, rate):
    exact = stats.binom(rows, rate).cdf(math.ceil(rows * rate / 2) - 1)
    assert exact <= theory.normaliser_failure(rate, rows, 1)


def test_rows_for_normaliser_inverts_the_failure():
    rows = theory.rows_for_normaliser(0.05, 6, 0.01)
    assert theory.normaliser_failure(0.05, rows, 6) == pytest.approx(0.01)


@pytest.mark.parametrize("terms", [1, 2, 7, 60])
@pytest.mark.parametrize("failure", [0.2, 0.01, 1e-6])
def test_laplace_sum_quantile_against_the_exact_law(terms, failure):
    """Exact tail by inversion of the characteristic function (1 + x^2)^-terms."""
    t = theory.laplace_sum_quantile(2.0, terms, failure) / 2.0
    x = np.linspace(0, 60 + 6 * math.sqrt(terms), 400_001)[1:]
    if terms == 1:
        tail = math.exp(-t)
    else:
        integrand = np.sin(x * t) / x * (1 + x**2) ** -float(terms)
        tail = (
            1
            - 2 / math.pi * float(np.sum(integrand[1:] + integrand[:-1]) / 2 * (x[1] - x[0]))
            - (2 / math.pi * t * (x[0]))
        )
    assert tail <= failure + 1e-6


@pytest.mark.parametrize("dimension", [1, 3, 400])
@pytest.mark.parametrize("failure", [0.3, 0.01, 1e-6])
def test_gaussian_norm_quantile_against_the_chi_law(dimension, failure):
    bound = theory.gaussian_norm_quantile(3.0, dimension, failure) / 3.0
    assert stats.chi(dimension).sf(bound) <= failure
    assert bound <= stats.chi(dimension).isf(failure) + 2.0


def test_gaussian_norm_as_printed_is_too_small_in_one_dimension():
    assert 2 * stats.norm.sf(math.sqrt(math.log(1 / 0.01))) > 3 * 0.01


@pytest.mark.parametrize(("terms", "denominator"), [((1, 2), 60.0), ((1, 10), 200.0), ((4, 8), 90.0)])
def test_ratio_error_by_simulation(terms, denominator):
    rng = np.random.default_rng(11)
    numerator, failure = 0.6 * denominator, 0.05
    noise = rng.laplace(scale=2.0, size=(40_000, terms[1]))
    # the numerator's cells are among the denominator's, as in the algorithm
    noisy = (numerator + noise[:, : terms[0]].sum(axis=1)) / (denominator + noise.sum(axis=1))
    bound = theory.ratio_error(
        numerator, denominator, laplace_scale=2.0, failure=failure, numerator_terms=terms[0], denominator_terms=terms[1]
    )
    assert (np.abs(noisy - 0.6) > bound).mean() <= failure
    printed = 4 * terms[1] * 2.0 * math.log(8 / failure) / denominator
    assert bound < printed


def test_ratio_error_is_infinite_when_noise_swallows_the_denominator():
    assert theory.ratio_error(1.0, 2.0, laplace_scale=1.0, failure=0.01) == math.inf
    with pytest.raises(InvalidInput, match="numerator"):
        theory.ratio_error(3.0, 2.0, laplace_scale=1.0, failure=0.01)


# --- regularity ------------------------------------------------------------


def test_softmax_constants_are_reached_or_close():
    assert theory.softmax_lipschitz(4.0) == pytest.approx(math.sqrt(2))  # logits 0, 0: tau/4 * |(1, -1)|
    # sup of |sigmoid''| is 1/(6 sqrt 3); the Hessian of two classes has twice that as norm
    two_classes = 2 / (6 * math.sqrt(3))
    assert two_classes <= theory.softmax_smoothness(1.0) <= 1.6 * two_classes


def test_smoothness_as_printed_is_too_small_for_steep_rates():
    """One constraint, one rate, two classes, linear model, no loss: second derivative by hand."""
    tau, norm, radius = 60.0, 1.0, 1.0
    truth = radius * 2 / (6 * math.sqrt(3)) * (tau * norm) ** 2
    printed = 2 * 1.0 * tau * max(norm, radius * 2 * norm)
    model = theory.ModelRegularity(norm, 0.0, 0.0, 0.0)
    ours = theory.lagrangian_regularity(model, temperature=tau, alpha_norm=1.0, multiplier_radius=radius, constraints=1)
    assert printed < truth <= ours.primal_smoothness <= ours.joint_smoothness


def test_joint_smoothness_is_reached_where_the_cross_term_rules():
    """Two classes at zero logits, nine copies of one constraint, hardly any curvature."""
    found = theory.lagrangian_regularity(
        theory.ModelRegularity(3.0, 0.0, 0.0, 0.0),
        temperature=2.0,
        alpha_norm=1.0,
        multiplier_radius=1e-9,
        constraints=9,
    )
    assert found.joint_smoothness == pytest.approx(2.0 * math.sqrt(2) / 4 * 3.0 * 3, rel=1e-6)


def test_linear_softmax_constants_are_reached():
    """Cross-entropy: a sure and wrong prediction, and two classes at 1/2."""
    model = theory.linear_softmax(3.0, temperature=2.0)
    assert model.loss_lipschitz == pytest.approx(math.sqrt(2) * 6)
    assert model.loss_smoothness == pytest.approx(36 * 0.5)


def test_composed_smoothness_by_hand():
    """g(h) with h = 3 theta + 5 theta^2/2 at 0 and g = 7 h + 11 h^2/2: second derivative 9 * 11 + 7 * 5."""
    found = theory.composed_smoothness(
        inner_lipschitz=3.0, inner_smoothness=5.0, outer_lipschitz=7.0, outer_smoothness=11.0
    )
    assert found == pytest.approx(134.0)


def test_model_regularity_refuses_negative_constants():
    with pytest.raises(InvalidInput, match="loss_smoothness"):
        theory.ModelRegularity(1.0, 0.0, 1.0, -1.0)


def test_unclipped_sensitivity_by_hand():
    found = theory.unclipped_sensitivity(
        loss_lipschitz=2.0,
        rate_lipschitz=0.5,
        alpha_norm=2.0,
        multiplier_radius=3.0,
        expected_batch=100.0,
        least_denominator=10.0,
    )
    assert found == pytest.approx(0.02 + 0.3)


# --- errors and convergence ------------------------------------------------------------


def softmax(logits):
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)


def rate_gradients(X, W):
    """Gradient in W of every soft prediction: rows x classes x (K d)."""
    soft = softmax(X @ W.T)
    jacobian = soft[:, :, None] * (np.eye(W.shape[0])[None] - soft[:, None, :])
    return np.einsum("nkl,nd->nkld", jacobian, X).reshape(len(X), W.shape[0], -1)


def released_step(rng, X, y, cells, W, multipliers, rate, scale, std):
    """One step as the paper writes it, demographic parity of two groups; returns both gradients."""
    batch = rng.random(len(X)) < rate
    soft = softmax(X @ W.T)
    table = np.stack([soft[batch & (cells == c)].sum(axis=0) for c in (0, 1)])
    table = table + rng.laplace(scale=scale, size=table.shape)
    rates = table / table.sum(axis=1, keepdims=True)
    dual = rates[0] - rates[1]
    gradients = rate_gradients(X, W)
    sign = np.where(cells == 0, 1.0, -1.0) / table.sum(axis=1)[cells]
    residual = soft - np.eye(W.shape[0])[y]
    loss = np.einsum("nk,nd->nkd", residual, X).reshape(len(X), -1) / (rate * len(X))
    rows = loss + sign[:, None] * np.einsum("k,nkp->np", multipliers, gradients)
    primal = rows[batch].sum(axis=0) + rng.normal(scale=std, size=rows.shape[1])
    return primal, dual


def true_gradients(X, y, cells, W, multipliers):
    soft, gradients = softmax(X @ W.T), rate_gradients(X, W)
    dual = soft[cells == 0].mean(axis=0) - soft[cells == 1].mean(axis=0)
    gap = gradients[cells == 0].mean(axis=0) - gradients[cells == 1].mean(axis=0)
    loss = np.einsum("nk,nd->nkd", soft - np.eye(W.shape[0])[y], X).reshape(len(X), -1).mean(axis=0)
    return loss + multipliers @ gap, dual


@pytest.mark.parametrize(("multipliers", "std"), [((1.0, 0.5), 0.01), ((20.0, 10.0), 0.0)])
def test_gradient_errors_by_simulation(multipliers, std):
    rng = np.random.default_rng(3)
    rows, d, K = 3000, 3, 2
    X = rng.normal(size=(rows, d))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    y, cells = rng.integers(0, K, rows), (rng.random(rows) < 0.4).astype(int)
    W, multipliers = 2.0 * rng.normal(size=(K, d)), np.array(multipliers)
    problem = theory.RateProblem(
        rows=rows,
        smallest_cell=int(min((cells == 0).sum(), (cells == 1).sum())),
        parameters=K * d,
        classes=K,
        constraints=K,
        alpha_norm=2.0,
        multiplier_radius=multipliers.sum(),
        model=theory.linear_softmax(1.0),
        subsets=2,
    )
    rate, scale, failure = 0.2, 1.5, 0.1
    bound = theory.gradient_errors(problem, sampling_rate=rate, gradient_std=std, laplace_scale=scale, failure=failure)
    truth = true_gradients(X, y, cells, W, multipliers)
    errors = []
    for _ in range(300):
        primal, dual = released_step(rng, X, y, cells, W, multipliers, rate, scale, std)
        errors.append((np.linalg.norm(primal - truth[0]), np.abs(dual - truth[1]).max()))
    seen = np.array(errors)
    assert np.any(seen > [bound.primal, bound.dual], axis=1).mean() <= failure
    assert bound.primal < 60 * seen[:, 0].max()
    assert bound.dual < 10 * seen[:, 1].max()


def test_gradient_errors_are_infinite_when_cells_are_too_small():
    problem = theory.RateProblem(100, 20, 4, 2, 2, 2.0, 1.0, theory.linear_softmax(1.0))
    found = theory.gradient_errors(problem, sampling_rate=0.1, gradient_std=0.1, laplace_scale=1.0, failure=0.1)
    assert found == theory.GradientErrors(math.inf, math.inf)


def test_gradient_errors_are_infinite_when_a_sample_may_miss_a_cell():
    problem = theory.RateProblem(1000, 200, 4, 2, 2, 2.0, 1.0, theory.linear_softmax(1.0))
    found = theory.gradient_errors(problem, sampling_rate=0.1, gradient_std=0.1, laplace_scale=1e-3, failure=0.1)
    assert found == theory.GradientErrors(math.inf, math.inf)


def test_rate_problem_refuses_a_cell_larger_than_the_data():
    with pytest.raises(InvalidInput, match="smallest_cell"):
        theory.RateProblem(100, 200, 4, 2, 2, 2.0, 1.0, theory.linear_softmax(1.0))


def envelope(theta_grid, values, smoothness, thetas):
    """Moreau envelope of a sampled function and its gradient, by brute force."""
    table = values[None, :] + smoothness * (thetas[:, None] - theta_grid[None, :]) ** 2
    best = table.argmin(axis=1)
    return table.min(axis=1), 2 * smoothness * (thetas - theta_grid[best])


@pytest.mark.parametrize("sizes", ["theorem", "small dual step"])
def test_descent_ascent_reaches_what_the_theorem_promises(sizes):
    """L(theta, lambda) = cos theta + lambda (sin theta - 0.2), errors at their bounds every step."""
    radius, steps = 1.5, 4000
    slope, bend = math.hypot(1, radius), math.hypot(1, radius)
    errors = theory.GradientErrors(primal=0.05, dual=0.02)
    grid = np.linspace(-4, 8, 24_001)
    phi = np.cos(grid) + radius * np.maximum(np.sin(grid) - 0.2, 0)
    start = 0.3
    gap = float(envelope(grid, phi, bend, np.array([start]))[0][0] - phi.min())
    chosen = theory.sgda_step_sizes(steps=steps, lipschitz=slope, smoothness=bend, errors=errors, envelope_gap=gap)
    if sizes != "theorem":
        chosen = theory.StepSizes(chosen.primal, chosen.dual / 100)
    theta, dual, path = start, 0.0, []
    rng = np.random.default_rng(0)
    for _ in range(steps):
        path.append(theta)
        primal_gradient = -math.sin(theta) + dual * math.cos(theta) + errors.primal * rng.choice((-1, 1))
        dual_gradient = math.sin(theta) - 0.2 + errors.dual * rng.choice((-1, 1))
        theta -= chosen.primal * primal_gradient
        dual = min(radius, max(0.0, dual + chosen.dual * dual_gradient))
    rise = math.cos(theta) + dual * (math.sin(theta) - 0.2) - math.cos(start)
    alpha = theory.sgda_stationarity(
        steps=steps,
        step_sizes=chosen,
        lipschitz=slope,
        smoothness=bend,
        multiplier_radius=radius,
        errors=errors,
        envelope_gap=gap,
        lagrangian_rise=rise,
    )
    gradients = envelope(grid, phi, bend, np.array(path))[1]
    assert np.sqrt(np.mean(gradients**2)) <= alpha
    assert np.abs(gradients).min() <= alpha < 3.0  # and the promise is not empty: at the start it is larger
    assert alpha < 50 * np.sqrt(np.mean(gradients**2))


def test_stationarity_of_one_step_by_hand():
    found = theory.sgda_stationarity(
        steps=1,
        step_sizes=theory.StepSizes(0.1, 4.0),
        lipschitz=2.0,
        smoothness=3.0,
        multiplier_radius=5.0,
        errors=theory.GradientErrors(1.0, 0.5),
        envelope_gap=0.7,
        lagrangian_rise=0.2,
    )
    mean_gap = 0.1 * 2 * 3 + 25 / 4 + 2 * 5 * 0.5 + 0.2
    squared = 0.7 / 0.1 + 2 * 3 * mean_gap + 2 * 3 * 0.1 * 5 + 2
    assert found == pytest.approx(math.sqrt(8 / 3 * squared))


def test_stationarity_falls_with_steps_to_the_floor_set_by_the_errors():
    errors = theory.GradientErrors(1e-3, 1e-4)
    found = []
    for steps in (10**2, 10**4, 10**8):
        facts = {"steps": steps, "lipschitz": 2.0, "smoothness": 3.0, "errors": errors, "envelope_gap": 1.0}
        sizes = theory.sgda_step_sizes(**facts)
        found.append(theory.sgda_stationarity(**facts, step_sizes=sizes, multiplier_radius=1.0, lagrangian_rise=1.0))
    assert found[0] > found[1] > found[2]
    floor = math.sqrt(8 / 3 * (2 * 3.0 * 4 * 1e-4 + 2e-6))
    assert found[2] == pytest.approx(floor, rel=0.6)


def example(rows):
    return theory.RateProblem(
        rows=rows,
        smallest_cell=rows // 4,
        parameters=20,
        classes=2,
        constraints=4,
        alpha_norm=2.0,
        multiplier_radius=1.0,
        model=theory.linear_softmax(1.0),
    )


def planned(rows, **more):
    return theory.convergence_plan(
        example(rows), epsilon=1.0, delta=1e-6, failure=0.1, envelope_gap=1.0, lagrangian_rise=1.0, **more
    )


def test_plan_follows_the_parameter_choice():
    plan = planned(40_000)
    assert plan.steps == int(min((10_000 / math.sqrt(20)) ** (4 / 3), 10_000 / 2))
    assert plan.sampling_rate == pytest.approx(plan.steps**-0.5)
    assert plan.noise == theory.proven_noise(1.0, 1e-6, plan.sampling_rate, plan.steps)
    assert spent(plan.noise, plan.sampling_rate, plan.steps, 1e-6) <= 1.0


def test_plan_promises_nothing_for_small_data_and_more_for_more_rows():
    assert planned(1000).stationarity == math.inf
    assert planned(1000).step_sizes is None
    large, huge = planned(10**8), planned(10**11)
    assert math.inf > large.stationarity > huge.stationarity
    assert huge.errors.dual < large.errors.dual
    assert large.errors == theory.gradient_errors(
        example(10**8),
        sampling_rate=large.sampling_rate,
        gradient_std=large.gradient_std,
        laplace_scale=large.noise.laplace_scale,
        failure=0.1 / large.steps,
    )


def test_plan_takes_a_sampling_rate():
    assert planned(40_000, sampling_rate=0.5).sampling_rate == 0.5
    with pytest.raises(InvalidInput, match="sampling_rate"):
        planned(40_000, sampling_rate=0.0)
