"""Closed forms: what can be said about a run with pencil and paper.

These are the theorems and lemmas of the RaCO-DP paper, each re-derived, and put right where the re-derivation
came out differently; the docstrings say what differs, ``docs/theory.md`` says why. They are for planning and
for understanding how quantities scale. They are **not** how ratewise decides what a run costs: that is the
accountant, which needs far less noise for the same guarantee.

Reading order: `privacy` (noise for a budget), `concentration` (how far a sampled, noisy rate strays),
`regularity` (Lipschitz and smoothness constants), `errors` (of the released gradients), `convergence` (what
descent-ascent reaches with them, and a plan that puts everything together).

Words used throughout, so that no argument has to be guessed:

- ``gradient_noise`` is a *multiplier*: standard deviation over sensitivity. ``gradient_std`` is *absolute*:
  the standard deviation of each coordinate of the released gradient, which is on the scale of a mean.
- ``laplace_scale`` is the *scale* b of a Laplace law with density exp(-|x|/b)/(2b). (The paper's algorithm
  writes Lap(1/b), its theorems treat b as the scale.)
- ``failure`` is the probability with which a bound may be wrong.
"""

from ratewise.accounting.theory.concentration import (
    gaussian_norm_quantile,
    laplace_sum_quantile,
    normaliser_failure,
    ratio_error,
    rows_for_normaliser,
    sampled_rate_error,
    subsample_mean_error,
    subsample_rate_error,
)
from ratewise.accounting.theory.convergence import (
    ConvergencePlan,
    StepSizes,
    convergence_plan,
    sgda_stationarity,
    sgda_step_sizes,
)
from ratewise.accounting.theory.errors import GradientErrors, RateProblem, gradient_errors
from ratewise.accounting.theory.privacy import (
    TheoremNoise,
    paper_noise,
    proven_noise,
    unclipped_sensitivity,
)
from ratewise.accounting.theory.regularity import (
    LagrangianRegularity,
    ModelRegularity,
    composed_smoothness,
    lagrangian_regularity,
    linear_softmax,
    rate_lipschitz,
    rate_smoothness,
    softmax_lipschitz,
    softmax_smoothness,
)

__all__ = [
    "ConvergencePlan",
    "GradientErrors",
    "LagrangianRegularity",
    "ModelRegularity",
    "RateProblem",
    "StepSizes",
    "TheoremNoise",
    "composed_smoothness",
    "convergence_plan",
    "gaussian_norm_quantile",
    "gradient_errors",
    "lagrangian_regularity",
    "laplace_sum_quantile",
    "linear_softmax",
    "normaliser_failure",
    "paper_noise",
    "proven_noise",
    "rate_lipschitz",
    "rate_smoothness",
    "ratio_error",
    "rows_for_normaliser",
    "sampled_rate_error",
    "sgda_stationarity",
    "sgda_step_sizes",
    "softmax_lipschitz",
    "softmax_smoothness",
    "subsample_mean_error",
    "subsample_rate_error",
    "unclipped_sensitivity",
]
