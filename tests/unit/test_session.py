"""The session: its stages, what it keeps, and how it goes on from released state."""

import pickle

import numpy as np
import pytest

from ratewise import RateConstrainedClassifier, demographic_parity
from ratewise.estimators.classifier import session_of
from ratewise.exceptions import LedgerError
from ratewise.training.config import TrainingConfig

N = 500
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 3))
Y = (X[:, 0] + 0.3 * RNG.normal(size=N) > 0).astype(int)
SEX = np.where(RNG.random(N) < 0.5, "F", "M")
DECLARED = {"classes": [0, 1], "group_values": {"sex": ["F", "M"]}, "feature_bounds": (-3, 3)}


def classifier(**options):
    options = {"epsilon": 10.0, "delta": 1e-5, "config": TrainingConfig(steps=20), "random_state": 1, **options}
    return RateConstrainedClassifier(demographic_parity("sex", max_gap=0.1), **options)


def session(**options):
    return session_of(classifier(**options), X, Y, sensitive_features={"sex": SEX})


@pytest.mark.parametrize("options", [DECLARED, {}])
def test_stages_release_in_the_order_of_the_plan(options):
    made = session(**options)
    made.run()
    assert list(made.released) == [name for name in made.plan.events if name != "training"]
    assert made.loop.optimizer.done == 20
    assert made.certificate is not None
    assert made.admission.left("training") == 0


def test_a_release_cannot_be_made_twice():
    made = session(**DECLARED)
    made.run()
    with pytest.raises(LedgerError):
        made.admission.release("certificate")


def test_state_holds_released_values_only():
    """A state has no array of the size of the table, and no random state."""
    made = session(**DECLARED)
    made.run()

    def arrays(thing):
        if isinstance(thing, np.ndarray):
            yield thing
        elif isinstance(thing, dict):
            for value in thing.values():
                yield from arrays(value)
        elif isinstance(thing, list | tuple):
            for value in thing:
                yield from arrays(value)

    state = made.state()
    assert not any(N in array.shape for array in arrays(state))
    assert b"bit_generator" not in pickle.dumps(state)
    assert b"PCG64" not in pickle.dumps(state)


def test_a_session_goes_on_from_its_state():
    first = session(**DECLARED)
    seen = []

    def stop(record):
        seen.append(record.step)
        if record.step == 8:
            raise RuntimeError

    with pytest.raises(RuntimeError):
        first.run(stop)
    state = first.state()
    second = session(**DECLARED, ledger=None)
    second.restore(state, first.admission)
    steps = []
    second.run(lambda record: steps.append(record.step))
    assert len(seen) + len(steps) <= 20
    assert steps[-1] == 20
    assert second.admission is first.admission
    assert second.certificate is not None
    assert list(second.released) == list(second.plan.events.keys() - {"training"}) or second.certificate is not None
    for name, value in state["released"].items():
        assert np.array_equal(np.asarray(second.released[name]), np.asarray(value))


def test_fewer_than_two_classes_end_early_with_a_warning():
    made = RateConstrainedClassifier(None, epsilon=0.5, delta=1e-5, random_state=2)
    with pytest.warns(UserWarning, match="fewer than two classes"):
        made.fit(X[:30], Y[:30])
    assert len(set(made.predict(X[:30]))) <= 1


def test_without_a_budget_nothing_is_noisy():
    one, other = (session(**DECLARED, epsilon=None, random_state=seed) for seed in (1, 2))
    for made in (one, other):
        made.config = TrainingConfig(steps=5, sampling_rate=1.0)
        made.run()
    assert np.array_equal(one.parameters, other.parameters)
    assert not one.plan.private


def test_training_learns_what_a_reference_learns():
    """Without noise and constraints the model agrees with logistic regression on most rows."""
    from sklearn.linear_model import LogisticRegression

    model = RateConstrainedClassifier(None, epsilon=None, model="linear", feature_bounds=(-3, 3), classes=[0, 1])
    found = model.fit(X, Y).predict(X)
    wanted = LogisticRegression().fit(X, Y).predict(X)
    assert np.mean(found == wanted) > 0.95
