"""How far a sampled and noisy rate strays from the true one, with a stated probability of being wrong.

All bounds are two-sided unless they say otherwise, hold for any data, and are finite-sample.

>>> round(sampled_rate_error(sampling_rate=0.1, rows=10_000, failure=0.05), 4)
0.0827
"""

from __future__ import annotations

import math

from ratewise import _validate
from ratewise.accounting.theory.ranges import within_range
from ratewise.exceptions import InvalidInput


@within_range
def sampled_rate_error(sampling_rate: float, rows: int, failure: float) -> float:
    """Bound |p - p_r|, the error of a rate estimated from a Poisson sample with a *constant* denominator.

    p is the mean of numbers x_i in [0, 1] over the rows, p_r = (sum of sampled x_i)/(r * rows). With
    u = ln(2/failure)/(r * rows), with probability at least 1 - failure::

        |p - p_r| <= u/3 + sqrt( u^2/9 + 2 (1 - r) u )

    Bernstein's inequality for the sum of (B_i - r) x_i, solved for the deviation. Times L it holds for
    the norm of vectors with norm at most L (Pinelis 1994), which is how the loss gradient is bounded.

    Lemma "Error of sampled rates" of the paper states sqrt(ln(1/failure)/(r rows)) "up to an order". That is
    too small as a number: the two-sided factor 2 is missing, and 1 - r was replaced by 1/4 although only
    r(1 - r) is at most 1/4. (Binomial sample, r = 0.01, 100,000 rows: it fails with probability 0.083 at
    failure = 0.05.)

    Parameters
    ----------
    sampling_rate : float in (0, 1]
    rows : int
        Number of rows that are sampled from, not the size of the sample.
    failure : float in (0, 1)
    """
    rate = _validate.fraction(sampling_rate=sampling_rate)
    u = math.log(2.0 / _validate.inside(failure=failure)) / (rate * _validate.count(rows=rows))
    return u / 3.0 + math.sqrt(u * u / 9.0 + 2.0 * (1.0 - rate) * u)


@within_range
def subsample_rate_error(sample_rows: float, failure: float) -> float:
    """Bound the error of a rate whose denominator is the realised size m of the sample.

    Given its size, a Poisson sample is a uniform sample without replacement, so Hoeffding (1963) gives
    sqrt( ln(2/failure)/(2m) ). The paper applies its lemma for constant denominators here.

    Parameters
    ----------
    sample_rows : float
        m, or a lower bound of it.
    failure : float in (0, 1)
    """
    size = _validate.positive(sample_rows=sample_rows)
    return math.sqrt(math.log(2.0 / _validate.inside(failure=failure)) / (2.0 * size))


@within_range
def subsample_mean_error(sample_rows: float, failure: float) -> float:
    """Bound the error of a mean of vectors of norm at most 1 over a sample of realised size m.

    ``(1 + sqrt(2 ln(1/failure)))/sqrt(m)``, whatever the dimension. The expected error is at most 1/sqrt(m);
    bounded differences 2/m give the rest; both carry over to sampling without replacement because
    exp(s |x|) is convex (Hoeffding 1963, section 6).

    Parameters
    ----------
    sample_rows : float
        m, or a lower bound of it.
    failure : float in (0, 1)
    """
    size = _validate.positive(sample_rows=sample_rows)
    return (1.0 + math.sqrt(2.0 * math.log(1.0 / _validate.inside(failure=failure)))) / math.sqrt(size)


@within_range
def normaliser_failure(sampling_rate: float, rows: float, subsets: int) -> float:
    """Bound the probability that some subset has fewer than half of its expected rows in a sample.

    For each of `subsets` subsets of at least `rows` rows, P( |sample of it| < r * rows/2 ) <= exp(-r rows/8)
    (Chernoff), and a union over subsets.

    Lemma "Normalizer lower bound" of the paper asks n >= 4 ln(J |D|/rho): the sampling rate is missing (a
    sample of expected size 1 is empty with probability 0.37 however large n is), and 4 should be 8.

    Parameters
    ----------
    sampling_rate : float in (0, 1]
    rows : float
        Rows of the smallest subset.
    subsets : int
        Number of distinct subsets over which rates are taken.
    """
    rate = _validate.fraction(sampling_rate=sampling_rate)
    size = _validate.positive(rows=rows)
    return min(1.0, _validate.count(subsets=subsets) * math.exp(-rate * size / 8.0))


@within_range
def rows_for_normaliser(sampling_rate: float, subsets: int, failure: float) -> float:
    """Return 8 ln(subsets/failure)/r: with that many rows `normaliser_failure` is at most `failure`."""
    rate = _validate.fraction(sampling_rate=sampling_rate)
    ratio = _validate.count(subsets=subsets) / _validate.inside(failure=failure)
    return 8.0 * math.log(ratio) / rate


@within_range
def laplace_sum_quantile(laplace_scale: float, terms: int, failure: float) -> float:
    """Return t such that the sum of `terms` independent Laplace draws exceeds t in size rarely.

    The smaller of two bounds, b the scale, k the number of terms: k b ln(k/failure) (some draw exceeds its
    share; exact for k = 1), and 2b sqrt(k x) + b x with x = ln(2/failure) (the sum is sub-gamma).

    The ratio lemma of the paper uses P(|sum| >= t) <= 2 exp(-t/(k b)), a quantile that grows like k where
    the truth grows like sqrt(k).

    Parameters
    ----------
    laplace_scale : float
        Scale b of each draw.
    terms : int
        Number of draws in the sum.
    failure : float in (0, 1)
    """
    scale = _validate.positive(laplace_scale=laplace_scale)
    terms = _validate.count(terms=terms)
    failure = _validate.inside(failure=failure)
    x = math.log(2.0 / failure)
    return scale * min(terms * math.log(terms / failure), 2.0 * math.sqrt(terms * x) + x)


@within_range
def gaussian_norm_quantile(std: float, dimension: int, failure: float) -> float:
    """Return t such that the norm of a Gaussian vector exceeds t with probability at most `failure`.

    ``std * (sqrt(d) + sqrt(2 ln(1/failure)))``, one-sided. The gradient lemma of the paper uses
    std * sqrt(d ln(1/failure)), which is too small for d = 1 (failure 0.01: P = 0.032) and far too large
    for large d.

    Parameters
    ----------
    std : float
        Standard deviation of each coordinate, absolute.
    dimension : int
    failure : float in (0, 1)
    """
    std = _validate.non_negative(std=std)
    dimension = _validate.count(dimension=dimension)
    return std * (math.sqrt(dimension) + math.sqrt(-2.0 * math.log(_validate.inside(failure=failure))))


@within_range
def ratio_error(
    numerator: float,
    denominator: float,
    *,
    laplace_scale: float,
    failure: float,
    numerator_terms: int = 1,
    denominator_terms: int = 1,
) -> float:
    """Bound how far Laplace noise moves a ratio of counts.

    With X and Y sums of numerator_terms and denominator_terms Laplace draws (dependent or not), t_X and t_Y
    their quantiles at failure/2 each (`laplace_sum_quantile`), with probability at least 1 - failure::

        | (mu_X + X)/(mu_Y + Y) - mu_X/mu_Y |  <=  (t_X + (mu_X/mu_Y) t_Y)/(mu_Y - t_Y)      if t_Y < mu_Y

    and infinity otherwise: the noisy denominator may then be near 0. *Proof.* The difference is
    (X - (mu_X/mu_Y) Y)/(mu_Y + Y).

    Lemma "Ratio" of the paper: 4 k_Y b ln(8/failure)/mu_Y if mu_Y >= 4 k_Y b ln(1/(2 failure)). Its statement
    was never violated in our search, its proof bounds P(Y <= -mu_Y/2) by the tail of *one* Laplace draw at
    mu_Y. The bound here is smaller, mostly because quantiles of sums grow like sqrt(k).

    Parameters
    ----------
    numerator, denominator : float
        The true counts, 0 <= numerator <= denominator, denominator above 0.
    laplace_scale : float
        Scale b of every draw.
    failure : float in (0, 1)
    numerator_terms, denominator_terms : int
        How many noisy cells each sum has.
    """
    top = _validate.non_negative(numerator=numerator)
    bottom = _validate.positive(denominator=denominator)
    if top > bottom:
        raise InvalidInput(f"numerator must be at most denominator = {bottom:g}, got {top:g}")
    half = _validate.inside(failure=failure) / 2.0
    top_noise = laplace_sum_quantile(laplace_scale, numerator_terms, half)
    bottom_noise = laplace_sum_quantile(laplace_scale, denominator_terms, half)
    if bottom_noise >= bottom:
        return math.inf
    return (top_noise + top / bottom * bottom_noise) / (bottom - bottom_noise)
