"""Made-up people: the schema, the law and the sample agree."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from ratewise.datasets import census_like
from ratewise.datasets import people as law
from ratewise.exceptions import InvalidInput, InvalidType

PEOPLE = census_like(200_000, random_state=7)


def members(key):
    inside = np.ones(len(PEOPLE), dtype=bool)
    for part in key.split(" & ") if key != "everyone" else ():
        column, value = part.split("=")
        inside &= PEOPLE.sensitive[column] == value
    return inside


@pytest.mark.parametrize("key", PEOPLE.group_rates)
def test_sample_follows_the_stated_shares_and_rates(key):
    inside = members(key)
    for found, stated, n in (
        (inside.mean(), PEOPLE.group_shares[key], len(PEOPLE)),
        (PEOPLE.y[inside].mean(), PEOPLE.group_rates[key], inside.sum()),
    ):
        assert abs(found - stated) <= 4 * np.sqrt(stated * (1 - stated) / n) + 1e-12


def test_wrong_rates_would_be_noticed():
    inside = members("sex=Female")
    wrong = PEOPLE.group_rates["sex=Female"] + 0.01
    assert abs(PEOPLE.y[inside].mean() - wrong) > 4 * np.sqrt(wrong * (1 - wrong) / inside.sum())


def test_stated_rates_are_the_integral_of_the_law():
    rate = PEOPLE.group_rates["sex=Male & region=West"]
    level = law._LEVEL["Male"] + law._SHIFT["West"]

    def density(z):
        return expit(level + law._SLOPE * z) * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)

    assert rate == pytest.approx(quad(density, -12, 12, epsabs=1e-13)[0], abs=1e-10)
    assert np.linalg.norm(law._MIX) == pytest.approx(1.0)


def test_shares_add_up():
    shares, rates = PEOPLE.group_shares, PEOPLE.group_rates
    assert shares["everyone"] == pytest.approx(1.0)
    crossed = [key for key in shares if "&" in key]
    assert len(crossed) == 8
    total = sum(shares[key] * rates[key] for key in crossed)
    assert total == pytest.approx(rates["everyone"])


def test_rows_fit_the_public_schema():
    low, high = PEOPLE.feature_bounds
    assert PEOPLE.X.dtype == np.float32
    assert PEOPLE.X.shape == (200_000, len(PEOPLE.feature_names))
    assert (PEOPLE.X.min(axis=0) >= low).all()
    assert (PEOPLE.X.max(axis=0) <= high).all()
    assert {name: tuple(values) for name, values in PEOPLE.group_values.items()} == {
        "sex": ("Female", "Male"),
        "region": ("North", "South", "West", "Islands"),
    }
    for name, values in PEOPLE.group_values.items():
        assert set(np.unique(PEOPLE.sensitive[name])) == set(values)
    assert set(np.unique(PEOPLE.y)) == set(PEOPLE.classes)


def test_categories_are_one_hot():
    names = np.array(PEOPLE.feature_names)
    for category in ("occupation=", "household="):
        part = PEOPLE.X[:, np.char.startswith(names, category)]
        assert set(np.unique(part)) == {0.0, 1.0}
        assert (part.sum(axis=1) == 1).all()


def test_schema_does_not_depend_on_the_rows():
    one, other = census_like(3, random_state=0), census_like(5, random_state=1)
    assert one.feature_names == other.feature_names
    assert (one.feature_bounds == other.feature_bounds).all()
    assert one.group_values == other.group_values
    assert dict(one.group_rates) == dict(other.group_rates)


def test_a_plain_model_is_useful_and_unfair():
    low, high = PEOPLE.feature_bounds
    X = (PEOPLE.X[:40_000] - low) / (high - low)
    model = LogisticRegression(C=10.0, max_iter=1000).fit(X[:20_000], PEOPLE.y[:20_000])
    predicted, sex = model.predict(X[20_000:]), PEOPLE.sensitive["sex"][20_000:40_000]
    assert 0.15 <= (predicted != PEOPLE.y[20_000:40_000]).mean() <= 0.18
    assert 0.15 <= predicted[sex == "Male"].mean() - predicted[sex == "Female"].mean() <= 0.20


def test_the_same_seed_gives_the_same_people():
    one, same, other = (census_like(50, random_state=seed) for seed in (3, 3, 4))
    assert (one.X == same.X).all()
    assert (one.y == same.y).all()
    assert (one.X != other.X).any()
    generator = np.random.default_rng(3)
    assert (census_like(50, random_state=generator).X == one.X).all()


def test_frame():
    frame = census_like(5, random_state=0).frame()
    assert list(frame.columns[-3:]) == ["sex", "region", "income"]
    assert frame.shape == (5, 19)
    assert "5 rows" in repr(census_like(5))


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"n_rows": 0}, InvalidInput, "n_rows must be at least 1"),
        ({"n_rows": 2.5}, InvalidInput, "n_rows must be a whole number"),
        ({"n_rows": "many"}, InvalidType, "n_rows must be a number"),
        ({"random_state": "seed"}, InvalidType, "random_state"),
        ({"random_state": -1}, InvalidInput, "random_state"),
    ],
)
def test_bad_input(arguments, kind, message):
    with pytest.raises(kind, match=message):
        census_like(**arguments)
