"""Lipschitz and smoothness constants of the Lagrangian, from those of the model.

The Lagrangian is  mean loss(theta) + sum_j lambda_j (Gamma_j(theta) - gamma_j)  with soft rates, so that
Gamma_j is a combination, with coefficients alpha_j, of means of softmax(tau h(theta; x))_k.

>>> model = linear_softmax(row_norm=1.0)
>>> found = lagrangian_regularity(
...     model, temperature=1.0, alpha_norm=2.0, multiplier_radius=5.0, constraints=4
... )
>>> round(found.lipschitz, 3), round(found.primal_smoothness, 3)
(4.95, 3.463)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ratewise import _validate
from ratewise.accounting.theory.ranges import within_range


@dataclass(frozen=True)
class ModelRegularity:
    """Constants, in theta and for every row, of a model that gives K logits and of its loss.

    Parameters
    ----------
    logit_lipschitz : float
        Largest spectral norm of the K x d Jacobian of the logits (the paper's L_h).
    logit_smoothness : float
        Lipschitz constant of that Jacobian in spectral norm (beta_h); 0 for a linear model.
    loss_lipschitz, loss_smoothness : float
        Bounds on the gradient of the loss and on its Lipschitz constant (L_l, beta_l).
    """

    logit_lipschitz: float
    logit_smoothness: float
    loss_lipschitz: float
    loss_smoothness: float

    def __post_init__(self) -> None:
        for name in ("logit_lipschitz", "logit_smoothness", "loss_lipschitz", "loss_smoothness"):
            object.__setattr__(self, name, _validate.non_negative(**{name: getattr(self, name)}))


@dataclass(frozen=True)
class LagrangianRegularity:
    """Constants of the Lagrangian.

    Parameters
    ----------
    lipschitz : float
        Bound on the norm of its gradient in theta, for every admissible lambda.
    primal_smoothness : float
        Lipschitz constant of that gradient in theta. This is all that the convergence theorem needs.
    joint_smoothness : float
        Lipschitz constant of the whole gradient in (theta, lambda), Euclidean norms.
    """

    lipschitz: float
    primal_smoothness: float
    joint_smoothness: float


@within_range
def softmax_lipschitz(temperature: float) -> float:
    """Return sqrt(2)/4 * tau: Lipschitz constant of one coordinate of softmax(tau z) in z.

    Its gradient tau s_k (e_k - s) has norm at most tau s_k (1 - s_k) sqrt(2); reached for two classes at 1/2.
    The paper uses tau, which is safe.
    """
    return math.sqrt(2.0) / 4.0 * _validate.positive(temperature=temperature)


@within_range
def softmax_smoothness(temperature: float) -> float:
    """Return 8/27 * tau^2: Lipschitz constant of the gradient of one coordinate of softmax(tau z) in z.

    The Hessian is tau^2 s_k [ (e_k - s)(e_k - s)' - (diag(s) - s s') ], a difference of two positive
    semi-definite matrices of norms at most 2 s_k (1 - s_k)^2 <= 8/27 and, by Gershgorin,
    2 s_k max_i s_i(1 - s_i) <= 8/27. The paper uses tau, which is too small as soon as tau is above 5.2
    (sup over two classes: 0.192 tau^2).
    """
    return 8.0 / 27.0 * _validate.positive(temperature=temperature) ** 2


@within_range
def composed_smoothness(
    *, inner_lipschitz: float, inner_smoothness: float, outer_lipschitz: float, outer_smoothness: float
) -> float:
    """Return the smoothness of g(h(theta)), h the inner and g the (scalar) outer function.

    ``L_h^2 beta_g + L_g beta_h``. The paper's lemma on composition states L_h beta_g + L_g^2 beta_h, its
    proof ends with the formula used here.
    """
    inner = _validate.non_negative(inner_lipschitz=inner_lipschitz)
    bend = _validate.non_negative(inner_smoothness=inner_smoothness)
    outer = _validate.non_negative(outer_lipschitz=outer_lipschitz)
    return inner * inner * _validate.non_negative(outer_smoothness=outer_smoothness) + outer * bend


@within_range
def rate_lipschitz(model: ModelRegularity, temperature: float) -> float:
    """Return the Lipschitz constant in theta of a soft prediction, and so of any soft rate."""
    known = _validate.instance(ModelRegularity, model=model)
    return softmax_lipschitz(temperature) * known.logit_lipschitz


@within_range
def rate_smoothness(model: ModelRegularity, temperature: float) -> float:
    """Return the smoothness in theta of a soft prediction, and so of any soft rate."""
    model = _validate.instance(ModelRegularity, model=model)
    return composed_smoothness(
        inner_lipschitz=model.logit_lipschitz,
        inner_smoothness=model.logit_smoothness,
        outer_lipschitz=softmax_lipschitz(temperature),
        outer_smoothness=softmax_smoothness(temperature),
    )


@within_range
def linear_softmax(row_norm: float, temperature: float = 1.0) -> ModelRegularity:
    """Return the constants of logits W x with cross-entropy on softmax(temperature * W x).

    Parameters
    ----------
    row_norm : float
        Bound on the norm of a row; with an intercept, of the row with a 1 appended.
    temperature : float
        Temperature inside the loss; the rates may use another one.
    """
    norm = _validate.non_negative(row_norm=row_norm)
    tau = _validate.positive(temperature=temperature)
    return ModelRegularity(
        logit_lipschitz=norm,
        logit_smoothness=0.0,
        loss_lipschitz=math.sqrt(2.0) * tau * norm,
        loss_smoothness=(tau * norm) ** 2 / 2.0,
    )


@within_range
def lagrangian_regularity(
    model: ModelRegularity,
    *,
    temperature: float,
    alpha_norm: float,
    multiplier_radius: float,
    constraints: int,
) -> LagrangianRegularity:
    """Return Lipschitz and smoothness constants of the Lagrangian.

    With L_P, beta_P the constants of a soft rate, c the alpha_norm, R the multiplier_radius, J constraints::

        lipschitz          G = L_l + c R L_P
        primal_smoothness  a = beta_l + c R beta_P
        joint_smoothness   ( a + sqrt(a^2 + 4 m^2) )/2      with  m = c L_P sqrt(J)

    *Proof of the last.* A move (u, v) of (theta, lambda) changes the gradient in theta by at most
    a |u| + m |v| and the gradient in lambda by at most m |u|; the norm of [[a, m], [m, 0]] is the value.

    Lemma "Regularity of the Lagrangian" of the paper has G = L_l + c tau L_h R (safe) and
    beta = beta_l + 2 c tau max( L_h sqrt(J), R (2 L_h + tau beta_h) ), which inherits the two slips described
    in `softmax_smoothness` and `composed_smoothness` and multiplies the change of Gamma by lambda. It is too
    small when tau L_h is large (for a linear model and two classes, above about 21) and too large otherwise.

    Parameters
    ----------
    model : ModelRegularity
    temperature : float
        tau, the temperature of the soft rates.
    alpha_norm : float
        c, the largest L1 norm of the coefficients of a constraint (2 for a gap between two rates).
    multiplier_radius : float
        R, the largest L1 norm of the multipliers. (If the set contains 0, the paper's L1 "diameter" lies
        between R and 2R.)
    constraints : int
        J.
    """
    weight = _validate.non_negative(alpha_norm=alpha_norm)
    radius = _validate.non_negative(multiplier_radius=multiplier_radius)
    slope = rate_lipschitz(model, temperature)
    bend = model.loss_smoothness + weight * radius * rate_smoothness(model, temperature)
    cross = weight * slope * math.sqrt(_validate.count(constraints=constraints))
    return LagrangianRegularity(
        lipschitz=model.loss_lipschitz + weight * radius * slope,
        primal_smoothness=bend,
        joint_smoothness=(bend + math.hypot(bend, 2.0 * cross)) / 2.0,
    )
