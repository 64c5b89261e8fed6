"""Closed forms on random problems: constants are never exceeded, bounds move the right way."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ratewise.accounting import theory

quick = settings(max_examples=60, deadline=None)
seeds = st.integers(0, 2**32 - 1)
rates = st.floats(1e-4, 1.0)
failures = st.floats(1e-9, 0.5)


def softmax(logits):
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)


class Lagrangian:
    """A random softmax-linear problem with random rate constraints over unions of cells."""

    def __init__(self, seed):
        rng = np.random.default_rng(seed)
        self.rows, self.d, self.K = 12, int(rng.integers(1, 4)), int(rng.integers(2, 5))
        self.J, self.tau = int(rng.integers(1, 5)), float(rng.uniform(0.3, 8.0))
        self.X = rng.normal(size=(self.rows, self.d)) * rng.uniform(0.1, 3.0)
        self.y = rng.integers(0, self.K, self.rows)
        cells = np.arange(self.rows) % 3
        self.weights = np.zeros((self.J, self.rows, self.K))
        self.alpha_norm = 0.0
        for j in range(self.J):
            norm = 0.0
            for _ in range(2):
                members = np.isin(cells, rng.permutation(3)[: rng.integers(1, 4)])
                alpha = rng.normal(size=self.K)
                norm += np.abs(alpha).sum()
                self.weights[j] += members[:, None] * alpha / members.sum()
            self.alpha_norm = max(self.alpha_norm, norm)
        self.radius = float(rng.uniform(0.1, 4.0))
        self.rng = rng

    def constants(self):
        return theory.lagrangian_regularity(
            theory.linear_softmax(float(np.linalg.norm(self.X, axis=1).max())),
            temperature=self.tau,
            alpha_norm=self.alpha_norm,
            multiplier_radius=self.radius,
            constraints=self.J,
        )

    def point(self):
        theta = self.rng.normal(size=(self.K, self.d)) * self.rng.uniform(0.0, 3.0)
        multipliers = self.rng.dirichlet(np.ones(self.J)) * self.radius
        return theta, multipliers

    def gradient(self, theta, multipliers):
        """Gradient in theta and lambda, by hand."""
        logits = self.X @ theta.T
        residual = (softmax(logits) - np.eye(self.K)[self.y]) / self.rows
        soft = softmax(self.tau * logits)
        table = np.einsum("j,jnk->nk", multipliers, self.weights)
        residual += self.tau * soft * (table - (soft * table).sum(axis=1, keepdims=True))
        return (residual.T @ self.X).ravel(), np.einsum("jnk,nk->j", self.weights, soft)

    def value(self, theta, multipliers):
        logits = self.X @ theta.T
        loss = -np.log(softmax(logits)[np.arange(self.rows), self.y]).mean()
        return loss + multipliers @ np.einsum("jnk,nk->j", self.weights, softmax(self.tau * logits))


@quick
@given(seeds)
def test_lagrangian_stays_within_its_constants(seed):
    problem = Lagrangian(seed)
    constants = problem.constants()
    for _ in range(5):
        theta, multipliers = problem.point()
        gradient, dual = problem.gradient(theta, multipliers)
        step = 1e-5 * problem.rng.normal(size=theta.shape)
        slope = (problem.value(theta + step, multipliers) - problem.value(theta - step, multipliers)) / 2
        assert slope == pytest.approx(gradient @ step.ravel(), abs=1e-8)  # the gradient is the gradient
        assert np.linalg.norm(gradient) <= constants.lipschitz
        moved, _ = problem.gradient(theta + step, multipliers)
        size = np.linalg.norm(step)
        assert np.linalg.norm(moved - gradient) <= constants.primal_smoothness * size * (1 + 1e-3)
        push = 1e-5 * problem.rng.normal(size=multipliers.shape)
        both = problem.gradient(theta + step, multipliers + push)
        change = math.hypot(np.linalg.norm(both[0] - gradient), np.linalg.norm(both[1] - dual))
        assert change <= constants.joint_smoothness * math.hypot(size, np.linalg.norm(push)) * (1 + 1e-3)


@quick
@given(st.lists(st.floats(-6, 6), min_size=2, max_size=6), st.floats(0.2, 5.0), seeds)
def test_softmax_coordinate_stays_within_its_constants(logits, tau, seed):
    z = np.array(logits)
    s = softmax(tau * z)
    for k in range(len(z)):
        e = np.eye(len(z))[k]
        hessian = tau**2 * s[k] * (np.outer(e - s, e - s) - np.diag(s) + np.outer(s, s))
        assert np.linalg.norm(tau * s[k] * (e - s)) <= theory.softmax_lipschitz(tau) * (1 + 1e-12)
        assert np.linalg.norm(hessian, 2) <= theory.softmax_smoothness(tau) * (1 + 1e-12)
    direction = 1e-4 * np.random.default_rng(seed).normal(size=len(z))
    second = softmax(tau * (z + direction)) - 2 * s + softmax(tau * (z - direction))
    assert np.abs(second).max() <= theory.softmax_smoothness(tau) * direction @ direction * 1.01 + 1e-14


@quick
@given(st.floats(0.0, 1.0), st.floats(1.0, 1e4), st.floats(0.1, 20.0), failures, st.integers(1, 20), seeds)
def test_ratio_error_covers_every_noise_within_the_quantiles(share, denominator, scale, failure, terms, seed):
    numerator = share * denominator
    bound = theory.ratio_error(numerator, denominator, laplace_scale=scale, failure=failure, denominator_terms=terms)
    top = theory.laplace_sum_quantile(scale, 1, failure / 2)
    bottom = theory.laplace_sum_quantile(scale, terms, failure / 2)
    if bottom >= denominator:
        assert bound == math.inf
        return
    rng = np.random.default_rng(seed)
    x = np.append(rng.uniform(-top, top, 500), [top, -top, top, -top])
    y = np.append(rng.uniform(-bottom, bottom, 500), [bottom, bottom, -bottom, -bottom])
    seen = np.abs((numerator + x) / (denominator + y) - share).max()
    assert seen <= bound * (1 + 1e-9)
    assert seen >= bound * (1 - 1e-9)  # the corner (top, -bottom) reaches it: no slack beyond the quantiles


@quick
@given(st.integers(0, 300), st.floats(0.01, 1.0), failures, seeds)
def test_sampled_rate_error_holds_for_any_values(extra, rate, failure, seed):
    """Markov from the exact moment generating function of the sum: a check that does not sample."""
    rng = np.random.default_rng(seed)
    values = rng.random(20 + extra) ** rng.uniform(0.1, 4.0)
    error = theory.sampled_rate_error(rate, len(values), failure) * rate * len(values)
    tilts = np.geomspace(1e-3, 30, 400)[:, None]
    for sign in (1.0, -1.0):
        centred = np.log1p(rate * np.expm1(sign * tilts * values)) - sign * tilts * rate * values
        tail = np.exp(np.min(centred.sum(axis=1) - tilts[:, 0] * error))
        assert tail <= failure / 2 * (1 + 1e-2)


@quick
@given(st.floats(0.01, 5.0), st.floats(1e-10, 1e-3), rates, st.integers(1, 10**6))
def test_noise_moves_the_right_way(epsilon, delta, rate, steps):
    assume(steps / delta >= 100)
    for function in (theory.paper_noise, theory.proven_noise):
        here = function(epsilon, delta, rate, steps)
        for other in (
            function(epsilon * 0.9, delta, rate, steps),
            function(epsilon, delta / 2, rate, steps),
            function(epsilon, delta, min(1.0, rate * 1.5), steps),
            function(epsilon, delta, rate, steps + 100),
        ):
            assert other.gradient_noise >= here.gradient_noise * (1 - 1e-12)
            assert other.laplace_scale >= here.laplace_scale * (1 - 1e-12)


@quick
@given(st.floats(0.05, 1.0), st.floats(0.01, 5.0), st.floats(0.01, 1.0), st.floats(1e-6, 0.2))
def test_gradient_errors_move_the_right_way(rate, scale, std, failure):
    def bounds(cell=50_000, scale=scale, std=std, failure=failure, classes=2, constraints=4):
        problem = theory.RateProblem(10 * cell, cell, 30, classes, constraints, 2.0, 1.0, theory.linear_softmax(1.0))
        return theory.gradient_errors(
            problem, sampling_rate=rate, gradient_std=std, laplace_scale=scale, failure=failure
        )

    here = bounds()
    assert math.isfinite(here.primal)
    assert here.dual > 0
    for worse in (
        bounds(cell=40_000),
        bounds(scale=2 * scale),
        bounds(failure=failure / 2),
        bounds(classes=5),
        bounds(constraints=9),
    ):
        assert worse.primal >= here.primal
        assert worse.dual >= here.dual
    assert bounds(std=2 * std).primal > here.primal


@quick
@given(
    st.integers(1, 10**6),
    st.floats(0.1, 10.0),
    st.floats(0.1, 10.0),
    st.floats(1e-3, 1.0),
    st.floats(1e-3, 1.0),
    st.floats(0.1, 10.0),
)
def test_step_sizes_of_the_theorem_are_not_beaten_by_far_off_ones(steps, slope, bend, primal, dual, radius):
    """A far smaller dual step, or a far larger primal one, is never promised more."""
    errors = theory.GradientErrors(primal, dual)
    facts = {"steps": steps, "lipschitz": slope, "smoothness": bend, "errors": errors, "envelope_gap": 1.0}
    more = {"multiplier_radius": radius, "lagrangian_rise": 1.0}
    sizes = theory.sgda_step_sizes(**facts)
    chosen = theory.sgda_stationarity(**facts, **more, step_sizes=sizes)
    smaller_dual = theory.sgda_stationarity(
        **facts, **more, step_sizes=theory.StepSizes(sizes.primal, sizes.dual / 1e4)
    )
    other_primal = theory.sgda_stationarity(
        **facts, **more, step_sizes=theory.StepSizes(sizes.primal * 1e3, sizes.dual)
    )
    assert chosen <= smaller_dual * (1 + 1e-12)
    assert chosen <= other_primal * (1 + 1e-12)
