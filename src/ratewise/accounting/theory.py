"""Closed forms: the theorems and lemmas of the RaCO-DP paper.

``docs/api/closed-forms.md`` has the formulas, their proofs and where they differ from the paper. They serve
to plan and to see how quantities scale. They do **not** decide what a run costs: that is the accountant,
which needs far less noise for the same guarantee. Arguments have the same meaning everywhere:

- ``gradient_noise`` is a *multiplier*: standard deviation over sensitivity. ``gradient_std`` is *absolute*:
  the standard deviation of each coordinate of the released gradient, which is on the scale of a mean.
- ``laplace_scale`` is the *scale* b of a Laplace law with density exp(-|x|/b)/(2b).
- ``sampling_rate`` is r, ``steps`` is T, ``rows`` is |D|; ``failure`` is the probability with which a bound
  may be wrong.
- ``alpha_norm`` is c, the largest L1 norm of the coefficients of a constraint (2 for a gap between two
  rates); ``multiplier_radius`` is R, the largest L1 norm of the multipliers; ``constraints`` is J.
- ``temperature`` is tau, that of the soft rates.

>>> noise = proven_noise(epsilon=1.0, delta=1e-5, sampling_rate=0.01, steps=1000)
>>> round(noise.gradient_noise, 1), round(noise.laplace_scale, 2)
(58.3, 4.75)
"""

from __future__ import annotations

import functools
import inspect
import math
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, ParamSpec, TypeVar

from ratewise import _validate
from ratewise.exceptions import InvalidInput

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

_POSITIVE = "epsilon temperature denominator laplace_scale clip_norm expected_batch smoothness rows sample_rows"
_NUMBERS: dict[str, Callable[..., float]] = {  # all others are at least 0
    **dict.fromkeys(_POSITIVE.split(), _validate.positive),
    "delta": _validate.inside,
    "failure": _validate.inside,
    "least_denominator": functools.partial(_validate.positive, hint="put a floor under denominators"),
    "sampling_rate": _validate.fraction,
    "lagrangian_rise": _validate.real,
}


def _check(name: str, kind: Any, value: Any) -> Any:
    """Return an argument in its canonical type: by its name if it is a float, else by its type."""
    if isinstance(kind, types.UnionType):
        return None if value is None else _check(name, typing.get_args(kind)[0], value)
    if kind is float:
        rule: Callable[..., float] = _NUMBERS.get(name, _validate.non_negative)
        return rule(**{name: value})
    return _validate.count(**{name: value}) if kind is int else _validate.instance(kind, **{name: value})


def _check_fields(record: Any) -> None:
    for name, kind in typing.get_type_hints(type(record)).items():
        object.__setattr__(record, name, _check(name, kind, getattr(record, name)))


def _formula(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Check the arguments, and refuse those for which floating point has no answer.

    An infinite result is an answer: nothing is promised. A NaN is none.
    """
    signature = inspect.signature(function, eval_str=True)
    message = f"the arguments of {function.__name__} are too large or too small for floating point; use other units"

    @functools.wraps(function)
    def checked(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        given = signature.bind(*args, **kwargs)
        for name, value in given.arguments.items():
            given.arguments[name] = _check(name, signature.parameters[name].annotation, value)
        try:
            result = function(*given.args, **given.kwargs)
        except (OverflowError, ZeroDivisionError):
            raise InvalidInput(message) from None
        if isinstance(result, float) and math.isnan(result):
            raise InvalidInput(message)
        return result

    return checked


# --- noise for a budget: a step reads one Poisson sample twice, for add-or-remove --------------------------


class TheoremNoise(NamedTuple):
    """Noise of both releases of a step, in the units that `ratewise.accounting.TrainingEvent` uses."""

    gradient_noise: float
    laplace_scale: float

    def gradient_std(self, clip_norm: float, expected_batch: float) -> float:
        """Return the absolute standard deviation per coordinate, which is the paper's sigma."""
        clip = _validate.positive(clip_norm=clip_norm)
        return self.gradient_noise * clip / _validate.positive(expected_batch=expected_batch)


@_formula
def paper_noise(epsilon: float, delta: float, sampling_rate: float, steps: int) -> TheoremNoise:
    """Return the noise of the paper's privacy theorem, word for word; **this is not a guarantee**.

    The theorem claims (epsilon, delta), which is false from about epsilon 6 on, and for delta near 1.
    """
    log = math.log(steps / delta)
    return TheoremNoise(
        gradient_noise=10.0 * log * max(1.0, sampling_rate * math.sqrt(steps)) / epsilon,
        laplace_scale=2.0 * max(1.0, sampling_rate * math.sqrt(steps * log)) / epsilon,
    )


@_formula
def proven_noise(epsilon: float, delta: float, sampling_rate: float, steps: int) -> TheoremNoise:
    """Return noise for which a pencil-and-paper proof of (epsilon, delta) goes through.

    If T/delta >= 100 and epsilon <= ln(T/delta), then T steps with this noise are (epsilon, delta)-private
    under adding or removing one row. Other arguments are refused.
    """
    log = math.log(steps / delta)
    hint = "the proof needs it; ratewise.accounting.calibrate has no such limit"
    if steps / delta < 100:
        raise InvalidInput(f"delta must be at most steps/100 = {steps / 100:g}, got {delta:g}; {hint}")
    if epsilon > log:
        raise InvalidInput(f"epsilon must be at most ln(steps/delta) = {log:.4g}, got {epsilon:g}; {hint}")
    most = max(1.0, sampling_rate * math.sqrt(steps * log) / epsilon)
    return TheoremNoise(gradient_noise=10.0 * math.sqrt(log) * most, laplace_scale=3.5 * most)


@_formula
def unclipped_sensitivity(
    *,
    loss_lipschitz: float,
    rate_lipschitz: float,
    alpha_norm: float,
    multiplier_radius: float,
    expected_batch: float,
    least_denominator: float,
) -> float:
    """Return how far one row can move the summed gradient when nothing is clipped."""
    multipliers = alpha_norm * multiplier_radius
    return loss_lipschitz / expected_batch + multipliers * rate_lipschitz / least_denominator


# --- concentration: two-sided unless stated otherwise, for any data, finite-sample -------------------------


@_formula
def sampled_rate_error(sampling_rate: float, rows: int, failure: float) -> float:
    """Bound the error of a rate estimated from a Poisson sample with a *constant* denominator, r * rows.

    Times L it holds for the norm of means of vectors with norm at most L, such as gradients.
    """
    u = math.log(2.0 / failure) / (sampling_rate * rows)
    return u / 3.0 + math.sqrt(u * u / 9.0 + 2.0 * (1.0 - sampling_rate) * u)


@_formula
def subsample_rate_error(sample_rows: float, failure: float) -> float:
    """Bound the error of a rate whose denominator is the realised size of the sample (Hoeffding 1963)."""
    return math.sqrt(math.log(2.0 / failure) / (2.0 * sample_rows))


@_formula
def subsample_mean_error(sample_rows: float, failure: float) -> float:
    """Bound the error of a mean of vectors of norm at most 1 over a sample of that realised size."""
    return (1.0 + math.sqrt(2.0 * math.log(1.0 / failure))) / math.sqrt(sample_rows)


@_formula
def normaliser_failure(sampling_rate: float, rows: float, subsets: int) -> float:
    """Bound the chance that a subset of at least `rows` rows has less than half its expected sample."""
    return min(1.0, subsets * math.exp(-sampling_rate * rows / 8.0))


@_formula
def rows_for_normaliser(sampling_rate: float, subsets: int, failure: float) -> float:
    """Return the number of rows with which `normaliser_failure` is at most `failure`."""
    return 8.0 * math.log(subsets / failure) / sampling_rate


@_formula
def laplace_sum_quantile(laplace_scale: float, terms: int, failure: float) -> float:
    """Return t such that the sum of `terms` independent Laplace draws exceeds t in size rarely."""
    x = math.log(2.0 / failure)
    return laplace_scale * min(terms * math.log(terms / failure), 2.0 * math.sqrt(terms * x) + x)


@_formula
def gaussian_norm_quantile(std: float, dimension: int, failure: float) -> float:
    """Return t that the norm of a Gaussian vector exceeds with probability at most `failure`."""
    return std * (math.sqrt(dimension) + math.sqrt(-2.0 * math.log(failure)))


@_formula
def ratio_error(
    numerator: float,
    denominator: float,
    *,
    laplace_scale: float,
    failure: float,
    numerator_terms: int = 1,
    denominator_terms: int = 1,
) -> float:
    """Bound how far sums of Laplace draws, dependent or not, move a ratio of counts to which they are added.

    It is infinite if the noisy denominator may be near 0.
    """
    if numerator > denominator:
        raise InvalidInput(f"numerator must be at most denominator = {denominator:g}, got {numerator:g}")
    top = laplace_sum_quantile(laplace_scale, numerator_terms, failure / 2.0)
    bottom = laplace_sum_quantile(laplace_scale, denominator_terms, failure / 2.0)
    if bottom >= denominator:
        return math.inf
    return (top + numerator / denominator * bottom) / (denominator - bottom)


# --- regularity of the Lagrangian, mean loss(theta) + sum_j lambda_j (Gamma_j(theta) - gamma_j) ------------


@dataclass(frozen=True)
class ModelRegularity:
    """Constants, in theta and for every row, of a model that gives K logits and of its loss.

    `logit_lipschitz` is the largest spectral norm of the K x d Jacobian of the logits (L_h) and
    `logit_smoothness` the Lipschitz constant of that Jacobian (beta_h; 0 for a linear model);
    `loss_lipschitz` and `loss_smoothness` bound the gradient of the loss and its Lipschitz constant (L_l,
    beta_l).
    """

    logit_lipschitz: float
    logit_smoothness: float
    loss_lipschitz: float
    loss_smoothness: float

    def __post_init__(self) -> None:
        _check_fields(self)


class LagrangianRegularity(NamedTuple):
    """Bound on the gradient in theta; Lipschitz constants of it and of that in (theta, lambda)."""

    lipschitz: float
    primal_smoothness: float
    joint_smoothness: float


@_formula
def softmax_lipschitz(temperature: float) -> float:
    """Return the Lipschitz constant of one coordinate of softmax(tau z) in z."""
    return math.sqrt(2.0) / 4.0 * temperature


@_formula
def softmax_smoothness(temperature: float) -> float:
    """Return a Lipschitz constant of the gradient of one coordinate of softmax(tau z) in z."""
    return 8.0 / 27.0 * temperature**2


@_formula
def composed_smoothness(
    *, inner_lipschitz: float, inner_smoothness: float, outer_lipschitz: float, outer_smoothness: float
) -> float:
    """Return the smoothness of g(h(theta)), h the inner function, g scalar."""
    return inner_lipschitz * inner_lipschitz * outer_smoothness + outer_lipschitz * inner_smoothness


@_formula
def rate_lipschitz(model: ModelRegularity, temperature: float) -> float:
    """Return the Lipschitz constant in theta of a soft prediction, and so of any soft rate."""
    return softmax_lipschitz(temperature) * model.logit_lipschitz


@_formula
def rate_smoothness(model: ModelRegularity, temperature: float) -> float:
    """Return the smoothness in theta of a soft prediction, and so of any soft rate."""
    return composed_smoothness(
        inner_lipschitz=model.logit_lipschitz,
        inner_smoothness=model.logit_smoothness,
        outer_lipschitz=softmax_lipschitz(temperature),
        outer_smoothness=softmax_smoothness(temperature),
    )


@_formula
def linear_softmax(row_norm: float, temperature: float = 1.0) -> ModelRegularity:
    """Return the constants of logits W x with cross-entropy on softmax(temperature * W x).

    `row_norm` bounds the norm of a row; with an intercept, of the row with a 1 appended.
    """
    slope = temperature * row_norm
    return ModelRegularity(row_norm, 0.0, math.sqrt(2.0) * slope, slope**2 / 2.0)


@_formula
def lagrangian_regularity(
    model: ModelRegularity, *, temperature: float, alpha_norm: float, multiplier_radius: float, constraints: int
) -> LagrangianRegularity:
    """Return Lipschitz and smoothness constants of the Lagrangian."""
    slope, weight = rate_lipschitz(model, temperature), alpha_norm * multiplier_radius
    smoothness = model.loss_smoothness + weight * rate_smoothness(model, temperature)
    cross = alpha_norm * slope * math.sqrt(constraints)
    joint = (smoothness + math.hypot(smoothness, 2.0 * cross)) / 2.0
    return LagrangianRegularity(model.loss_lipschitz + weight * slope, smoothness, joint)


# --- errors of the released gradients: soft rates, no clipping, Laplace noise on the histogram -------------


@dataclass(frozen=True)
class RateProblem:
    """The public facts about a problem that the closed forms need.

    `smallest_cell` is n, the rows of the smallest cell of the partition; `parameters` is d, `classes` is K.
    `subsets` is the number of distinct subsets over which rates are taken; None: 2 per constraint.
    """

    rows: int
    smallest_cell: int
    parameters: int
    classes: int
    constraints: int
    alpha_norm: float
    multiplier_radius: float
    model: ModelRegularity
    temperature: float = 1.0
    subsets: int | None = None

    def __post_init__(self) -> None:
        _check_fields(self)
        _validate.positive(alpha_norm=self.alpha_norm)
        _validate.positive(multiplier_radius=self.multiplier_radius)
        if self.smallest_cell > self.rows:
            raise InvalidInput(f"smallest_cell must be at most rows = {self.rows}, got {self.smallest_cell}")

    @property
    def regularity(self) -> LagrangianRegularity:
        """Lipschitz and smoothness constants of the Lagrangian."""
        names = ("temperature", "alpha_norm", "multiplier_radius", "constraints")
        return lagrangian_regularity(self.model, **{name: getattr(self, name) for name in names})


class GradientErrors(NamedTuple):
    """Bounds on the errors of one step: `primal` in Euclidean norm, `dual` in the largest coordinate."""

    primal: float
    dual: float


@_formula
def gradient_errors(
    problem: RateProblem, *, sampling_rate: float, gradient_std: float, laplace_scale: float, failure: float
) -> GradientErrors:
    """Bound the errors of both gradients of one step, together, with probability at least 1 - failure.

    Infinite if the noise can swallow a denominator, or if the smallest cell is too small for half its
    expected sample to be a lower bound of its sample.
    """
    part = failure / 7.0  # for each of the seven things that can go wrong, shared over subsets and classes
    subsets = problem.subsets or 2 * problem.constraints
    pairs = subsets * problem.classes
    least = sampling_rate * problem.smallest_cell / 2.0
    below = laplace_sum_quantile(laplace_scale, problem.classes, part / subsets)
    above = laplace_sum_quantile(laplace_scale, 1, part / pairs)
    enough = problem.smallest_cell >= rows_for_normaliser(sampling_rate, subsets, part)
    if not enough or below >= least:
        return GradientErrors(math.inf, math.inf)
    dual = (above + below) / (least - below) + subsample_rate_error(least, part / pairs)
    rates = below / (least - below) + subsample_mean_error(least, part / pairs)
    loss = sampled_rate_error(sampling_rate, problem.rows, part)
    slope = rate_lipschitz(problem.model, problem.temperature)
    return GradientErrors(
        primal=gaussian_norm_quantile(gradient_std, problem.parameters, part)
        + problem.model.loss_lipschitz * loss
        + problem.alpha_norm * problem.multiplier_radius * slope * rates,
        dual=problem.alpha_norm * dual,
    )


# --- convergence -----------------------------------------------------------------------------------------
#
# What descent-ascent reaches with gradients that have bounded errors. Multipliers come from
# {lambda >= 0, |lambda|_1 <= R}. The goal is a near-stationary point of Phi(theta), the maximum of the Lagrangian
# over lambda: a theta within alpha/(2 beta) of a point where Phi has a subgradient of norm at most alpha.


class StepSizes(NamedTuple):
    """Learning rates of theta (`primal`) and of lambda (`dual`)."""

    primal: float
    dual: float


@_formula
def sgda_step_sizes(
    *, steps: int, lipschitz: float, smoothness: float, errors: GradientErrors, envelope_gap: float
) -> StepSizes:
    """Return the step sizes of the convergence theorem.

    `lipschitz` and `smoothness` are `lipschitz` and `primal_smoothness` of the Lagrangian, `errors` hold in
    every step, and `envelope_gap` bounds the Moreau envelope of Phi at the start minus its least value.
    """
    e = _validate.non_negative(primal_error=errors.primal)
    f = _validate.positive(dual_error=errors.dual, hint="any small number will do")
    primal = math.sqrt(envelope_gap / (2.0 * steps * smoothness)) / math.hypot(lipschitz, e)
    return StepSizes(primal=primal, dual=primal * lipschitz * (lipschitz + e) / f**2)


@_formula
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

    `lagrangian_rise` bounds L(theta_T, lambda_T) - L(theta_0, lambda_0); others as in `sgda_step_sizes`.
    """
    h, k = _validate.positive(primal_step=step_sizes.primal), _validate.positive(dual_step=step_sizes.dual)
    e = _validate.non_negative(primal_error=errors.primal)
    f = _validate.non_negative(dual_error=errors.dual)
    drift, spread = h * lipschitz * (lipschitz + e), multiplier_radius**2 / k
    ideal = math.sqrt(spread / drift) if drift > 0 else float(steps)
    near = {1, steps, *(min(steps, max(1, round(ideal * factor))) for factor in (0.8, 1.0, 1.25))}
    blocks = min(drift * size + math.ceil(steps / size) / steps * spread for size in near)
    # bounds the mean over steps of Phi(theta) - L(theta, lambda)
    gap = blocks + 2.0 * multiplier_radius * f + max(lagrangian_rise, 0.0) / steps
    squared = (
        envelope_gap / (h * steps) + 2.0 * smoothness * gap + 2.0 * smoothness * h * (lipschitz**2 + e**2) + 2.0 * e**2
    )
    return math.sqrt(8.0 / 3.0 * squared)


class ConvergencePlan(NamedTuple):
    """A setting of every parameter for which both theorems hold, and what they then promise.

    `errors` hold in all steps together with probability 1 - failure. Where they are infinite, nothing is
    promised: `step_sizes` is None and `stationarity`, which is alpha, is infinite.
    """

    steps: int
    sampling_rate: float
    noise: TheoremNoise
    gradient_std: float
    errors: GradientErrors
    step_sizes: StepSizes | None
    stationarity: float


@_formula
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

    The sampling rate is 1/sqrt(T) unless given: the paper asks for at least that. The noise is `proven_noise`
    on the unclipped sensitivity with every denominator floored at r n/4.
    """
    scaled = problem.smallest_cell * epsilon
    ideal = min((scaled / math.sqrt(problem.parameters)) ** (4.0 / 3.0), scaled / problem.classes)
    steps = max(1, int(ideal))
    rate = _validate.fraction(sampling_rate=steps**-0.5 if sampling_rate is None else sampling_rate)
    noise = proven_noise(epsilon, delta, rate, steps)
    radius, regularity = problem.multiplier_radius, problem.regularity
    std = noise.gradient_noise * unclipped_sensitivity(
        loss_lipschitz=problem.model.loss_lipschitz,
        rate_lipschitz=rate_lipschitz(problem.model, problem.temperature),
        alpha_norm=problem.alpha_norm,
        multiplier_radius=radius,
        expected_batch=rate * problem.rows,
        least_denominator=rate * problem.smallest_cell / 4.0,
    )
    scale, each = noise.laplace_scale, failure / steps
    errors = gradient_errors(problem, sampling_rate=rate, gradient_std=std, laplace_scale=scale, failure=each)
    if math.isinf(errors.dual):
        return ConvergencePlan(steps, rate, noise, std, errors, None, math.inf)
    common: dict[str, Any] = {"steps": steps, "errors": errors, "envelope_gap": envelope_gap}
    common |= {"lipschitz": regularity.lipschitz, "smoothness": regularity.primal_smoothness}
    sizes = sgda_step_sizes(**common)
    alpha = sgda_stationarity(**common, step_sizes=sizes, multiplier_radius=radius, lagrangian_rise=lagrangian_rise)
    return ConvergencePlan(steps, rate, noise, std, errors, sizes, alpha)
