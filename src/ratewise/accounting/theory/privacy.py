"""Noise that a theorem promises to be enough, in closed form.

A step reads one Poisson sample twice: the histogram of predictions (sensitivity 1, Laplace noise) and the
clipped gradient (sensitivity C/B with B the expected batch, Gaussian noise). Neighbours differ by adding or
removing one row.

>>> noise = proven_noise(epsilon=1.0, delta=1e-5, sampling_rate=0.01, steps=1000)
>>> round(noise.gradient_noise, 1), round(noise.laplace_scale, 2)
(58.3, 4.75)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ratewise import _validate
from ratewise.accounting.theory.ranges import within_range
from ratewise.exceptions import InvalidInput

_LEAST_STEPS_OVER_DELTA = 100.0


@dataclass(frozen=True)
class TheoremNoise:
    """Noise of both releases of a step, in the units that `ratewise.accounting.TrainingEvent` uses.

    Parameters
    ----------
    gradient_noise : float
        Multiplier: standard deviation of the Gaussian over the sensitivity C/B of the gradient.
    laplace_scale : float
        Scale of the Laplace noise on every cell of the histogram, whose L1 sensitivity is 1.
    """

    gradient_noise: float
    laplace_scale: float

    def gradient_std(self, clip_norm: float, expected_batch: float) -> float:
        """Return the absolute standard deviation per coordinate, which is the paper's sigma.

        Parameters
        ----------
        clip_norm : float
            C, the bound on the norm of one row's gradient before division by the expected batch.
        expected_batch : float
            B = r |D|, a constant.
        """
        clip = _validate.positive(clip_norm=clip_norm)
        return self.gradient_noise * clip / _validate.positive(expected_batch=expected_batch)


@within_range
def paper_noise(epsilon: float, delta: float, sampling_rate: float, steps: int) -> TheoremNoise:
    """Return the noise of the paper's privacy theorem, word for word; this is not a guarantee.

    With r the sampling rate and T the steps, the theorem asks for::

        laplace_scale  = 2 max( 1/epsilon, r sqrt(T ln(T/delta))/epsilon )
        gradient_noise = 10 max( ln(T/delta)/epsilon, r sqrt(T) ln(T/delta)/epsilon )

    (the paper states sigma = gradient_noise * C/(r |D|)) and claims (epsilon, delta) for every epsilon.

    What is wrong. Its proof amplifies an (e1, .) step to (r e1, .), which is the first-order form of
    ln(1 + r(exp(e1) - 1)) and needs e1 small, but e1 grows with epsilon and nothing bounds epsilon. From
    epsilon = 6 or so the noise can be too small: epsilon 7, delta 1e-9, r = 0.05, T = 15 really spends 8.13
    (more in ``docs/theory.md``). For delta near 1 and one step, ln(T/delta) vanishes, and the noise with it.
    The proof also writes sqrt(8 T ln(1/delta) e2) for sqrt(8 T ln(1/delta)) e2 and drops epsilon in e1.
    Use `proven_noise` for a theorem, and `ratewise.accounting.calibrate` for training.

    Parameters
    ----------
    epsilon : float
    delta : float in (0, 1)
    sampling_rate : float in (0, 1]
    steps : int
    """
    epsilon, delta, rate, steps = _budget(epsilon, delta, sampling_rate, steps)
    log = math.log(steps / delta)
    return TheoremNoise(
        gradient_noise=10.0 * log * max(1.0, rate * math.sqrt(steps)) / epsilon,
        laplace_scale=2.0 * max(1.0, rate * math.sqrt(steps * log)) / epsilon,
    )


@within_range
def proven_noise(epsilon: float, delta: float, sampling_rate: float, steps: int) -> TheoremNoise:
    """Return noise for which a pencil-and-paper proof of (epsilon, delta) goes through.

    With l = ln(T/delta) and m = max(1, r sqrt(T l)/epsilon)::

        laplace_scale = 3.5 m          gradient_noise = 10 sqrt(l) m

    **Theorem.** If T/delta >= 100 and epsilon <= l, then T steps with this noise are (epsilon, delta)-private
    under adding or removing one row.

    *Proof.* A histogram is e_L = 1/(3.5 m)-private. A gradient is (e_G, d_G)-private with d_G = delta/(2T)
    and e_G = sqrt(2 ln(1.25/d_G))/gradient_noise <= sqrt(2.4 l)/(10 sqrt(l) m) < 0.155/m, because ln(2.5) is
    at most 0.2 l. Together e_0 = e_L + e_G < 0.4407/m. Sampling gives e' = ln(1 + r(exp(e_0) - 1)) <=
    r (exp(0.4407) - 1)/m <= 0.554 r/m <= 0.554 epsilon/sqrt(T l) and d' = r d_G. Advanced composition with
    slack delta/2 gives e' sqrt(2 T ln(2/delta)) + T e'^2/2 <= 0.841 epsilon + 0.154 epsilon^2/l <= epsilon,
    because ln 2 is at most 0.151 l, and T d' + delta/2 <= delta.

    What differs from the paper: the constants (3.5 and not 2 for the scale), the first entry of the maximum
    (1 and not 1/epsilon: less noise for small epsilon, more for large), sqrt(l) and not l in front of the
    Gaussian when the first entry wins, and a stated range.

    Parameters
    ----------
    epsilon : float
        At most ln(steps/delta).
    delta : float in (0, 1)
        At most steps/100.
    sampling_rate : float in (0, 1]
    steps : int

    Raises
    ------
    InvalidInput
        Outside the range in which the proof holds.
    """
    epsilon, delta, rate, steps = _budget(epsilon, delta, sampling_rate, steps)
    log = math.log(steps / delta)
    hint = "the proof needs it; ratewise.accounting.calibrate has no such limit"
    if steps / delta < _LEAST_STEPS_OVER_DELTA:
        raise InvalidInput(f"delta must be at most steps/100 = {steps / 100:g}, got {delta:g}; {hint}")
    if epsilon > log:
        raise InvalidInput(f"epsilon must be at most ln(steps/delta) = {log:.4g}, got {epsilon:g}; {hint}")
    most = max(1.0, rate * math.sqrt(steps * log) / epsilon)
    return TheoremNoise(gradient_noise=10.0 * math.sqrt(log) * most, laplace_scale=3.5 * most)


@within_range
def unclipped_sensitivity(
    *,
    loss_lipschitz: float,
    rate_lipschitz: float,
    alpha_norm: float,
    multiplier_radius: float,
    expected_batch: float,
    least_denominator: float,
) -> float:
    """Return how far one row can move the summed gradient when nothing is clipped.

    The row adds grad loss/B + sum_j lambda_j sum_{I,k} alpha_{j,I,k}/N_I * grad soft_k, of norm at most::

        loss_lipschitz/expected_batch + alpha_norm * multiplier_radius * rate_lipschitz/least_denominator

    Theorem "Privacy under Lipschitzness" of the paper, which takes least_denominator = r n/4 (n the smallest
    cell) and adds 2 delta for the event that a released denominator is smaller. No such event is needed if
    denominators are floored: a floor is post-processing, and this bound then always holds. In the paper's
    statement a factor multiplier_radius is missing from the sensitivity (its displayed inequality has it)
    and a clipping norm C appears that does not exist there.

    Parameters
    ----------
    loss_lipschitz : float
        Lipschitz constant in theta of the loss of one row.
    rate_lipschitz : float
        The same for one soft prediction: `rate_lipschitz`.
    alpha_norm : float
        Largest L1 norm of the coefficients of a constraint.
    multiplier_radius : float
        Largest L1 norm of the multipliers.
    expected_batch : float
        B = r |D|, a constant.
    least_denominator : float
        A number that no denominator N_I falls below.
    """
    loss = _validate.non_negative(loss_lipschitz=loss_lipschitz)
    rate = _validate.non_negative(rate_lipschitz=rate_lipschitz)
    alpha = _validate.non_negative(alpha_norm=alpha_norm)
    radius = _validate.non_negative(multiplier_radius=multiplier_radius)
    batch = _validate.positive(expected_batch=expected_batch)
    least = _validate.positive(least_denominator=least_denominator, hint="put a floor under denominators")
    return loss / batch + alpha * radius * rate / least


def _budget(
    epsilon: float, delta: float, sampling_rate: float, steps: int
) -> tuple[float, float, float, int]:
    return (
        _validate.positive(epsilon=epsilon),
        _validate.inside(delta=delta),
        _validate.fraction(sampling_rate=sampling_rate),
        _validate.count(steps=steps),
    )
