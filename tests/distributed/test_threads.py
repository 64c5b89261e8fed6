"""Threads share the work on one machine; results do not depend on their number."""

import warnings

import numpy as np
import pytest

from ratewise import RateConstrainedClassifier, TrainingConfig
from ratewise.models import additive


@pytest.mark.parametrize("ids", [None, "person"])
@pytest.mark.parametrize("rates", ["hard", "soft"])
def test_same_for_any_number_of_threads(people, fit, same, monkeypatch, ids, rates):
    monkeypatch.setattr(additive, "BLOCK_ROWS", 256)
    frame = people if ids else people.drop(columns="person")
    config = TrainingConfig(steps=6, rates=rates)
    found = []
    for threads in (1, 2, 5):
        monkeypatch.setattr("ratewise.models.rows.available_threads", lambda threads=threads: threads)
        found.append(fit(frame, ids, config=config))
    assert same(found[0], found[1])
    assert same(found[0], found[2])


def test_threads_warn_of_nothing(people, monkeypatch):
    monkeypatch.setattr(additive, "BLOCK_ROWS", 256)
    monkeypatch.setattr("ratewise.models.rows.available_threads", lambda: 3)
    model = RateConstrainedClassifier(epsilon=1.0, random_state=0, config=TrainingConfig(steps=3, l2=0.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        model.fit(people[["age", "hours"]], people["y"])
    engine_errors = []

    def overflow(block):
        engine_errors.append(np.geterr()["over"])
        return np.float64(0.0)

    list(additive.in_threads(np.errstate(all="ignore")(overflow), [1, 2, 3], 2))
    assert engine_errors == ["ignore"] * 3


def test_processors(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert additive.available_threads() == 1
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert additive.available_threads() >= 1
