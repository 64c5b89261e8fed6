"""A small table of people, and what has to agree between two fits of it."""

import numpy as np
import pandas as pd
import pytest

from ratewise import RateConstrainedClassifier, TrainingConfig, demographic_parity


@pytest.fixture(scope="session")
def people():
    rng = np.random.default_rng(5)
    n = 1500
    frame = pd.DataFrame(
        {
            "age": rng.integers(18, 80, n),
            "hours": np.where(rng.random(n) < 0.1, np.nan, rng.normal(38.0, 9.0, n)),
            "job": rng.choice(["clerk", "nurse", "smith"], n),
            "sex": rng.choice(["F", "M"], n),
            "person": rng.integers(0, 600, n),
        }
    )
    score = 0.05 * (frame["age"] - 50) + (frame["job"] == "nurse") + rng.normal(size=n)
    frame["y"] = np.where(rng.random(n) < 0.02, None, np.where(score > 0, "yes", "no"))
    return frame


@pytest.fixture(scope="session")
def fit():
    def fitted(table, ids=None, steps=6, **changes):
        settings = {"epsilon": 4.0, "random_state": 3, "config": TrainingConfig(steps=steps), **changes}
        model = RateConstrainedClassifier(demographic_parity("sex", max_gap=0.1), **settings)
        return model.fit(table, "y", sensitive_features=["sex"], privacy_ids=ids)

    return fitted


@pytest.fixture(scope="session")
def same():
    def agree(one, other):
        np.testing.assert_array_equal(one.model_.scorer.table, other.model_.scorer.table)
        np.testing.assert_array_equal(one.model_.scorer.intercept, other.model_.scorer.intercept)
        np.testing.assert_array_equal(one.multipliers_, other.multipliers_)
        assert one.certificate_.to_dict() == other.certificate_.to_dict()
        assert one.plan_ == other.plan_
        assert list(one.classes_) == list(other.classes_)
        return True

    return agree
