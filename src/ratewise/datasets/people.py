"""Synthetic people with known rates, for examples and tests.

>>> people = census_like(1000, random_state=0)
>>> people.X.shape, people.y.shape, sorted(people.sensitive)
((1000, 16), (1000,), ['region', 'sex'])
>>> round(people.group_rates["sex=Female"], 3), round(people.group_rates["sex=Male"], 3)
(0.116, 0.352)
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, roots_hermitenorm
from scipy.stats import norm

from ratewise import _validate
from ratewise.exceptions import InvalidType

SEXES = {"Female": 0.4, "Male": 0.6}
REGIONS = {"North": 0.45, "South": 0.3, "West": 0.2, "Islands": 0.05}
OCCUPATIONS = ("service", "manual", "clerical", "sales", "technical", "manager", "professional", "other")
HOUSEHOLDS = ("alone", "couple", "family")

NUMERIC = MappingProxyType(
    {
        "age": (17.0, 90.0),
        "education_years": (1.0, 20.0),
        "hours_per_week": (1.0, 99.0),
        "years_in_job": (0.0, 50.0),
        "commute_minutes": (0.0, 180.0),
    }
)

# The law: three independent standard normal traits, skill, effort and tenure, which the features show through
# noise. The log-odds of the label are LEVEL[sex] + SHIFT[region] + SLOPE * (MIX of the traits).
_LEVEL = {"Female": -4.2, "Male": -1.35}
_SHIFT = {"North": 0.25, "South": -0.2, "West": 0.0, "Islands": -0.6}
_MIX = np.array([0.7, 0.5, np.sqrt(1.0 - 0.7**2 - 0.5**2)])
_SLOPE = 3.0
_FEATURES = (*NUMERIC, *(f"occupation={o}" for o in OCCUPATIONS), *(f"household={h}" for h in HOUSEHOLDS))


@dataclass(frozen=True, eq=False)
class People:
    """Rows, and the public schema and true rates of the law they were drawn from; made by `census_like`.

    `X` has numeric features within `feature_bounds`, then one-hot occupation and household; `y` is 1 for high
    income; `sensitive` has "sex" and "region". `group_shares` and `group_rates` are the probability of each
    group, and of label 1 in it, under the law and not in this sample: keys such as "sex=Female", "sex=Female
    & region=North", "everyone".
    """

    X: NDArray[np.float32]
    y: NDArray[np.int64]
    sensitive: dict[str, NDArray[np.str_]]
    feature_names: tuple[str, ...]
    feature_bounds: NDArray[np.float64]
    classes: tuple[int, int]
    group_values: dict[str, tuple[str, ...]]
    group_shares: MappingProxyType[str, float]
    group_rates: MappingProxyType[str, float]

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        return f"<People: {len(self)} rows, {len(self.feature_names)} features, groups by sex and region>"

    def frame(self) -> Any:
        """Return one pandas data frame: features, "sex", "region" and "income". Needs pandas."""
        try:
            import pandas as pd
        except ImportError:
            raise ImportError("People.frame() needs pandas: pip install pandas") from None
        table = pd.DataFrame(self.X, columns=list(self.feature_names))
        return table.assign(**self.sensitive, income=self.y)


def census_like(n_rows: int = 20_000, *, random_state: Any = None) -> People:
    """Draw people whose income depends on skill, effort and tenure, and, unfairly, on sex and region.

    Rates of label 1 differ strongly by sex (about 0.12 against 0.35), mildly by region, and "Islands" is a
    minority of one in twenty. A logistic regression errs on about one row in six and has a demographic-parity
    gap by sex of about 0.18.

    Parameters
    ----------
    n_rows : int
    random_state : int, NumPy generator or None
        A seed makes the rows repeatable.

    Returns
    -------
    People
        With `X`, `y` and `sensitive`; `frame()` returns them as one data frame with the label "income".
    """
    n = _validate.count(n_rows=n_rows)
    rng = _generator(random_state)
    sex, region = _draw(rng, n, SEXES), _draw(rng, n, REGIONS)
    traits = rng.standard_normal((3, n), dtype=np.float32)
    level = np.array(list(_LEVEL.values()))[sex] + np.array(list(_SHIFT.values()))[region]
    y = (rng.random(n) < expit(level + _SLOPE * (_MIX @ traits))).astype(np.int64)
    shares, rates = _true_rates()
    return People(
        X=_features(rng, sex, traits),
        y=y,
        sensitive={"sex": np.array(list(SEXES))[sex], "region": np.array(list(REGIONS))[region]},
        feature_names=_FEATURES,
        feature_bounds=np.array([*NUMERIC.values(), *([(0.0, 1.0)] * (len(_FEATURES) - len(NUMERIC)))]).T,
        classes=(0, 1),
        group_values={"sex": tuple(SEXES), "region": tuple(REGIONS)},
        group_shares=MappingProxyType(shares),
        group_rates=MappingProxyType(rates),
    )


def _draw(rng: np.random.Generator, n: int, shares: dict[str, float]) -> NDArray[np.intp]:
    edges = np.cumsum(list(shares.values()))[:-1]
    return np.searchsorted(edges, rng.random(n, dtype=np.float32), side="right")


def _features(rng: np.random.Generator, sex: NDArray[np.intp], traits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return features that show the traits through noise, within the public bounds."""
    n = len(sex)
    skill, effort, tenure = traits
    noise = rng.standard_normal((4, n), dtype=np.float32)
    X = np.zeros((n, len(_FEATURES)), dtype=np.float32)
    X[:, 0] = 40.0 + 11.0 * tenure + 6.0 * noise[0]
    X[:, 1] = 10.5 + 2.6 * skill + 1.0 * noise[1]
    X[:, 2] = 36.0 + 5.0 * sex + 9.0 * effort + 3.0 * noise[2]
    X[:, 3] = 8.0 + 5.0 * tenure + 2.0 * noise[3]
    X[:, 4] = 30.0 * rng.standard_exponential(n, dtype=np.float32)
    for j, (low, high) in enumerate(NUMERIC.values()):
        np.clip(X[:, j], low, high, out=X[:, j])
    X[:, :4].round(out=X[:, :4])
    # occupations are eighths of a noisy skill, moved by sex: a feature that tells the group
    mixed = 0.8 * skill + 0.45 * noise[1] + 0.8 * (sex - 0.6)
    edges = norm.ppf(np.arange(1, len(OCCUPATIONS)) / len(OCCUPATIONS)).astype(np.float32)
    rows, first = np.arange(n), len(NUMERIC)
    X[rows, first + np.searchsorted(edges, mixed)] = 1.0
    thresholds = np.array([[0.55, 0.85], [0.15, 0.4]], dtype=np.float32)[sex]
    household = (rng.random(n, dtype=np.float32)[:, None] > thresholds).sum(axis=1)
    X[rows, first + len(OCCUPATIONS) + household] = 1.0
    return X


def _true_rates() -> tuple[dict[str, float], dict[str, float]]:
    """Return the law's share and rate of label 1 for every group.

    The mix of traits is standard normal, so a rate is E[expit(level + slope * Z)], a one-dimensional integral
    that Gauss-Hermite quadrature gives to more than ten digits.
    """
    nodes, weights = roots_hermitenorm(200)
    weights = weights / weights.sum()
    shares: dict[str, float] = {}
    positive: dict[str, float] = {}
    for (sex, share_sex), (region, share_region) in itertools.product(SEXES.items(), REGIONS.items()):
        share = share_sex * share_region
        rate = float(weights @ expit(_LEVEL[sex] + _SHIFT[region] + _SLOPE * nodes))
        for key in (f"sex={sex} & region={region}", f"sex={sex}", f"region={region}", "everyone"):
            shares[key] = shares.get(key, 0.0) + share
            positive[key] = positive.get(key, 0.0) + share * rate
    return shares, {key: positive[key] / shares[key] for key in shares}


def _generator(random_state: Any) -> np.random.Generator:
    if random_state is None or isinstance(random_state, np.random.Generator):
        return np.random.default_rng(random_state)
    if isinstance(random_state, bool) or not isinstance(random_state, int | np.integer):
        kind = type(random_state).__name__
        raise InvalidType(f"random_state must be a whole number, a numpy Generator or None, got {kind}")
    return np.random.default_rng(_validate.count(at_least=0, random_state=random_state))
