"""What descent-ascent reaches with gradients that have bounded errors, and a plan that follows from it.

Multipliers come from {lambda >= 0, |lambda|_1 <= R}. The goal is a near-stationary point of
Phi(theta) = max over lambda of the Lagrangian: a theta within alpha/(2 beta) of a point where Phi has a
subgradient of norm at most alpha.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ratewise import _validate
from ratewise.accounting.theory.errors import GradientErrors, RateProblem, gradient_errors
from ratewise.accounting.theory.privacy import TheoremNoise, proven_noise, unclipped_sensitivity
from ratewise.accounting.theory.ranges import within_range
from ratewise.accounting.theory.regularity import rate_lipschitz


@dataclass(frozen=True)
class StepSizes:
    """Learning rates of theta (`primal`) and of lambda (`dual`)."""

    primal: float
    dual: float


@within_range
def sgda_step_sizes(
    *, steps: int, lipschitz: float, smoothness: float, errors: GradientErrors, envelope_gap: float
) -> StepSizes:
    """Return the step sizes of the convergence theorem.

    With G, beta the constants of the Lagrangian, e and f the primal and dual errors, D the envelope gap::

        primal = sqrt( D/(2 T beta (G^2 + e^2)) )          dual = primal * G (G + e)/f^2

    Theorem "SGDA convergence" of the paper has f in place of f^2. Its proof replaces sqrt(primal G(G+e)/dual)
    by f, which needs the square.

    Parameters
    ----------
    steps : int
    lipschitz, smoothness : float
        `LagrangianRegularity.lipschitz` and `.primal_smoothness`.
    errors : GradientErrors
        Bounds that hold in every step.
    envelope_gap : float
        D, a bound on the Moreau envelope of Phi at the start minus its least value.
    """
    steps = _validate.count(steps=steps)
    slope = _validate.positive(lipschitz=lipschitz)
    bend = _validate.positive(smoothness=smoothness)
    errors = _validate.instance(GradientErrors, errors=errors)
    primal_error = _validate.non_negative(primal_error=errors.primal)
    dual_error = _validate.positive(dual_error=errors.dual, hint="any small number will do")
    gap = _validate.positive(envelope_gap=envelope_gap)
    primal = math.sqrt(gap / (2.0 * steps * bend)) / math.hypot(slope, primal_error)
    return StepSizes(primal=primal, dual=primal * slope * (slope + primal_error) / dual_error**2)


@within_range
def sgda_stationarity(
    *,
    steps: int,
    step_sizes: StepSizes,
    lipschitz: float,
    smoothness: float,
    multiplier_radius: float,
    errors: GradientErrors,
    envelope_gap: float,
    lagrangian_rise: float,
) -> float:
    """Return alpha such that some iterate of descent-ascent is an (alpha, alpha/(2 beta))-stationary point.

    With h, k the primal and dual step, E = h G (G + e), for every whole number M from 1 to T::

        gap   = E M + ceil(T/M)/T * R^2/k + 2 R f + lagrangian_rise/T
        alpha = sqrt( 8/3 * [ D/(h T) + 2 beta gap + 2 beta h (G^2 + e^2) + 2 e^2 ] )

    and the best M is taken. `gap` bounds the mean over steps of Phi(theta) - L(theta, lambda).

    Theorem "SGDA convergence" of the paper, constants made explicit. What differs: the decrease of the
    envelope is 3/8 h |grad|^2 (the proof's last lines turn 1/8 into 1/2, the statement says 1/4; strong
    convexity of the proximal problem gives 3/8). The term that telescopes is L(end) - L(start), so what must
    be bounded is the *rise* of the Lagrangian, not L(start) minus its minimum. The multipliers lie in an L1
    ball of radius R: L1 diameter 2R, squared L2 diameter at most 2R^2.

    Parameters
    ----------
    steps : int
    step_sizes : StepSizes
    lipschitz, smoothness : float
        G and beta: `LagrangianRegularity.lipschitz` and `.primal_smoothness`.
    multiplier_radius : float
        R.
    errors : GradientErrors
        e and f, bounds that hold in every step.
    envelope_gap : float
        D, as in `sgda_step_sizes`.
    lagrangian_rise : float
        Bound on L(theta_T, lambda_T) - L(theta_0, lambda_0).
    """
    steps = _validate.count(steps=steps)
    slope = _validate.non_negative(lipschitz=lipschitz)
    bend = _validate.positive(smoothness=smoothness)
    radius = _validate.non_negative(multiplier_radius=multiplier_radius)
    step_sizes = _validate.instance(StepSizes, step_sizes=step_sizes)
    errors = _validate.instance(GradientErrors, errors=errors)
    primal_step = _validate.positive(primal_step=step_sizes.primal)
    dual_step = _validate.positive(dual_step=step_sizes.dual)
    primal_error = _validate.non_negative(primal_error=errors.primal)
    dual_error = _validate.non_negative(dual_error=errors.dual)
    gap = _validate.non_negative(envelope_gap=envelope_gap)
    rise = _validate.real(lagrangian_rise=lagrangian_rise)
    drift = primal_step * slope * (slope + primal_error)
    spread = radius**2 / dual_step
    mean_gap = _best_block(steps, drift, spread) + 2.0 * radius * dual_error + max(rise, 0.0) / steps
    squared = (
        gap / (primal_step * steps)
        + 2.0 * bend * mean_gap
        + 2.0 * bend * primal_step * (slope**2 + primal_error**2)
        + 2.0 * primal_error**2
    )
    return math.sqrt(8.0 / 3.0 * squared)


def _best_block(steps: int, drift: float, spread: float) -> float:
    """Smallest found value of drift*M + ceil(steps/M)/steps*spread; any M gives a valid bound."""
    ideal = math.sqrt(spread / drift) if drift > 0 else float(steps)
    near = {1, steps, *(min(steps, max(1, round(ideal * factor))) for factor in (0.8, 1.0, 1.25))}
    return min(drift * size + math.ceil(steps / size) / steps * spread for size in near)


@dataclass(frozen=True)
class ConvergencePlan:
    """A setting of every parameter for which both theorems hold, and what they then promise.

    Parameters
    ----------
    steps : int
    sampling_rate : float
    noise : TheoremNoise
        Multiplier of the gradient and scale of the Laplace noise.
    gradient_std : float
        The same gradient noise, absolute.
    errors : GradientErrors
        Hold in all steps together with probability 1 - failure.
    step_sizes : StepSizes or None
        None where the errors are infinite: nothing is promised.
    stationarity : float
        alpha; infinite where nothing is promised.
    """

    steps: int
    sampling_rate: float
    noise: TheoremNoise
    gradient_std: float
    errors: GradientErrors
    step_sizes: StepSizes | None
    stationarity: float


@within_range
def convergence_plan(
    problem: RateProblem,
    *,
    epsilon: float,
    delta: float,
    failure: float,
    envelope_gap: float,
    lagrangian_rise: float,
    sampling_rate: float | None = None,
) -> ConvergencePlan:
    """Return the parameter choice of the paper's convergence theorem, with provable noise and every constant.

    Steps T = min( (n epsilon/sqrt(d))^(4/3), n epsilon/K ), at least 1, as in the paper; sampling rate
    1/sqrt(T) unless given (the paper asks for at least that, so that the second entry of both maxima in the
    noise wins). Noise: `proven_noise` for (epsilon, delta), on the unclipped sensitivity with every
    denominator floored at r n/4. Errors: `gradient_errors` at failure/T.

    What differs from the paper: its noise lacks the constants of its own privacy theorem; its errors hold for
    one step, not for all; its privacy is (epsilon, 3 delta) and conditional, here it is (epsilon, delta)
    thanks to the floor, which never enlarges the errors: where they are finite, the true count is above it.

    Parameters
    ----------
    problem : RateProblem
    epsilon, delta : float
        Within the range of `proven_noise`.
    failure : float in (0, 1)
        Probability that the promise on convergence is not kept (privacy does not depend on it).
    envelope_gap, lagrangian_rise : float
        As in `sgda_stationarity`.
    sampling_rate : float in (0, 1] or None
    """
    epsilon = _validate.positive(epsilon=epsilon)
    failure = _validate.inside(failure=failure)
    problem = _validate.instance(RateProblem, problem=problem)
    scaled = problem.smallest_cell * epsilon
    ideal = min((scaled / math.sqrt(problem.parameters)) ** (4.0 / 3.0), scaled / problem.classes)
    steps = max(1, int(ideal))
    rate = _validate.fraction(sampling_rate=steps**-0.5 if sampling_rate is None else sampling_rate)
    noise = proven_noise(epsilon, delta, rate, steps)
    gradient_std = noise.gradient_noise * unclipped_sensitivity(
        loss_lipschitz=problem.model.loss_lipschitz,
        rate_lipschitz=rate_lipschitz(problem.model, problem.temperature),
        alpha_norm=problem.alpha_norm,
        multiplier_radius=problem.multiplier_radius,
        expected_batch=rate * problem.rows,
        least_denominator=rate * problem.smallest_cell / 4.0,
    )
    errors = gradient_errors(
        problem,
        sampling_rate=rate,
        gradient_std=gradient_std,
        laplace_scale=noise.laplace_scale,
        failure=failure / steps,
    )
    if math.isinf(errors.dual):
        return ConvergencePlan(steps, rate, noise, gradient_std, errors, None, math.inf)
    constants = problem.regularity
    sizes = sgda_step_sizes(
        steps=steps,
        lipschitz=constants.lipschitz,
        smoothness=constants.primal_smoothness,
        errors=errors,
        envelope_gap=envelope_gap,
    )
    alpha = sgda_stationarity(
        steps=steps,
        step_sizes=sizes,
        lipschitz=constants.lipschitz,
        smoothness=constants.primal_smoothness,
        multiplier_radius=problem.multiplier_radius,
        errors=errors,
        envelope_gap=envelope_gap,
        lagrangian_rise=lagrangian_rise,
    )
    return ConvergencePlan(steps, rate, noise, gradient_std, errors, sizes, alpha)
