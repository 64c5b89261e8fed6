"""What a search costs is proven for a number of trials that stays secret: no record may tell it."""

import numpy as np
import pytest

from ratewise import PrivateSearch, RateConstrainedClassifier, TrainingConfig, demographic_parity
from ratewise.accounting import process_total
from ratewise.estimators import search as search_module

RNG = np.random.default_rng(0)
X, Y, SEX = RNG.normal(size=(400, 2)), RNG.integers(0, 2, 400), RNG.choice(["F", "M"], 400)


@pytest.mark.parametrize("constraints", [None, demographic_parity("sex", max_gap=0.1)])
def test_the_total_of_the_process_hides_the_number_of_trials(constraints, monkeypatch):
    totals = []
    for number in (1, 4):
        monkeypatch.setattr(search_module, "draw_number", lambda *_, number=number: number)
        model = RateConstrainedClassifier(
            constraints,
            classes=[0, 1],
            group_values={"sex": ["F", "M"]},
            feature_bounds=(-3, 3),
            config=TrainingConfig(steps=3),
        )
        name = f"a search of {number} over {constraints}"
        choices = {"epsilon": 20.0, "delta": 1e-5, "mean_trials": 4.0, "data_name": name}
        found = PrivateSearch(model, {"config__l2": [0.0, 0.1]}, **choices)
        found.fit(X, Y, sensitive_features={"sex": SEX})
        totals.append(process_total(name, 1e-5))
        assert totals[-1].epsilon == pytest.approx(found.privacy_.epsilon)
    assert totals[0].plans == totals[1].plans == 1
    assert totals[0].epsilon == totals[1].epsilon
