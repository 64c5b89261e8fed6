"""The public facts of a problem, and the errors of the two gradients that a step releases.

Everything is for soft rates, no clipping, and Laplace noise on the histogram.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ratewise import _validate
from ratewise.accounting.theory.concentration import (
    gaussian_norm_quantile,
    laplace_sum_quantile,
    rows_for_normaliser,
    sampled_rate_error,
    subsample_mean_error,
    subsample_rate_error,
)
from ratewise.accounting.theory.ranges import within_range
from ratewise.accounting.theory.regularity import (
    LagrangianRegularity,
    ModelRegularity,
    lagrangian_regularity,
    rate_lipschitz,
)
from ratewise.exceptions import InvalidInput


@dataclass(frozen=True)
class RateProblem:
    """The public facts about a problem that the closed forms need.

    Parameters
    ----------
    rows : int
        |D|.
    smallest_cell : int
        n, rows of the smallest cell of the partition.
    parameters : int
        d, the dimension of theta.
    classes : int
        K.
    constraints : int
        J.
    alpha_norm : float
        c, the largest L1 norm of the coefficients of a constraint.
    multiplier_radius : float
        R, the largest L1 norm of the multipliers.
    model : ModelRegularity
    temperature : float
        Temperature of the soft rates.
    subsets : int or None
        Number of distinct subsets over which rates are taken; None: 2 per constraint.
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
        for name in ("rows", "smallest_cell", "parameters", "classes", "constraints"):
            object.__setattr__(self, name, _validate.count(**{name: getattr(self, name)}))
        for name in ("alpha_norm", "multiplier_radius", "temperature"):
            object.__setattr__(self, name, _validate.positive(**{name: getattr(self, name)}))
        _validate.instance(ModelRegularity, model=self.model)
        subsets = 2 * self.constraints if self.subsets is None else self.subsets
        object.__setattr__(self, "subsets", _validate.count(subsets=subsets))
        if self.smallest_cell > self.rows:
            raise InvalidInput(f"smallest_cell must be at most rows = {self.rows}, got {self.smallest_cell}")

    @property
    def subset_count(self) -> int:
        """Number of distinct subsets over which rates are taken."""
        return 2 * self.constraints if self.subsets is None else self.subsets

    @property
    def regularity(self) -> LagrangianRegularity:
        """Lipschitz and smoothness constants of the Lagrangian."""
        return lagrangian_regularity(
            self.model,
            temperature=self.temperature,
            alpha_norm=self.alpha_norm,
            multiplier_radius=self.multiplier_radius,
            constraints=self.constraints,
        )


@dataclass(frozen=True)
class GradientErrors:
    """Bounds on the errors of one step: `primal` in Euclidean norm, `dual` in the largest coordinate."""

    primal: float
    dual: float


@within_range
def gradient_errors(
    problem: RateProblem,
    *,
    sampling_rate: float,
    gradient_std: float,
    laplace_scale: float,
    failure: float,
) -> GradientErrors:
    """Bound the errors of both gradients of one step, together, with probability at least 1 - failure.

    With m = r n/2 (no subset has fewer sampled rows, except with probability failure/7), t_1 and t_K the
    quantiles of one and of K Laplace draws, G_P the Lipschitz constant of a soft rate::

        dual   <= c [ (t_1 + t_K)/(m - t_K) + Hoeffding(m) ]
        primal <= gaussian_norm(d) + L_l Bernstein(r, |D|) + c R G_P [ t_K/(m - t_K) + vector Hoeffding(m) ]

    Each of the seven things that can go wrong gets failure/7, shared over subsets and classes. Infinite if
    the noise can swallow a denominator (t_K >= m), or if n is too small for m to be a lower bound.

    Lemma "Gradient error" of the paper. What differs: (1) it bounds the norm of a weighted sum of *different*
    vectors by |sum of weights| times the largest norm, which is no inequality (equal weights that sum to 0
    would give 0); the sampling error of the mean gradient has to be added: "vector Hoeffding". (2) The norm
    of the Gaussian and the sampled rates, see `concentration`. (3) One cell is the worst
    case among unions: a mean of Laplace draws is more peaked than one draw (Proschan 1965). (4) Its proof
    loses the factor K that its statement has; here K enters as sqrt(K).

    Parameters
    ----------
    problem : RateProblem
    sampling_rate : float in (0, 1]
    gradient_std : float
        *Absolute* standard deviation of each coordinate of the released gradient.
    laplace_scale : float
        Scale of the noise on every cell of the histogram.
    failure : float in (0, 1)
        For one step. For T steps give failure/T.
    """
    rate = _validate.fraction(sampling_rate=sampling_rate)
    part = _validate.inside(failure=failure) / 7.0
    std = _validate.non_negative(gradient_std=gradient_std)
    problem = _validate.instance(RateProblem, problem=problem)
    subsets = problem.subset_count
    pairs = subsets * problem.classes
    least = rate * problem.smallest_cell / 2.0
    below = laplace_sum_quantile(laplace_scale, problem.classes, part / subsets)
    above = laplace_sum_quantile(laplace_scale, 1, part / pairs)
    enough = problem.smallest_cell >= rows_for_normaliser(rate, subsets, part)
    if not enough or below >= least:
        return GradientErrors(math.inf, math.inf)
    dual = (above + below) / (least - below) + subsample_rate_error(least, part / pairs)
    rates = below / (least - below) + subsample_mean_error(least, part / pairs)
    loss = sampled_rate_error(rate, problem.rows, part)
    slope = rate_lipschitz(problem.model, problem.temperature)
    return GradientErrors(
        primal=gaussian_norm_quantile(std, problem.parameters, part)
        + problem.model.loss_lipschitz * loss
        + problem.alpha_norm * problem.multiplier_radius * slope * rates,
        dual=problem.alpha_norm * dual,
    )
