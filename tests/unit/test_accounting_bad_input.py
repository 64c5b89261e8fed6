"""Questions without an answer: one clear exception each, naming the argument, the value and the way out."""

from __future__ import annotations

import math

import pytest

from ratewise import accounting
from ratewise.accounting import GaussianEvent, OutsideEvent, SelectionEvent, TrainingEvent, UnprotectedEvent
from ratewise.exceptions import InvalidInput, InvalidType, UnsupportedCombination

EVENT = TrainingEvent(0.1, 10, 2.0)
NOT_NUMBERS = ["1e-5", None, True, [1e-5], 1j, {}]


def shown(value: object, caught: pytest.ExceptionInfo[Exception]) -> bool:
    return repr(value)[:40] in str(caught.value)


# ---------------------------------------------------------------- epsilon, delta, curve


@pytest.mark.parametrize("value", [-1e-5, 1, 1.0, 2, math.nan, math.inf, -math.inf])
def test_delta_out_of_range(value):
    with pytest.raises(InvalidInput, match=r"\bdelta must be .*, got ") as caught:
        accounting.epsilon(EVENT, value)
    assert shown(value, caught)


def test_delta_zero_has_no_finite_answer_for_gaussian_noise():
    with pytest.raises(InvalidInput, match=r"\bdelta must be .*, got 0"):
        accounting.epsilon(EVENT, 0)


@pytest.mark.parametrize("value", NOT_NUMBERS)
def test_delta_of_the_wrong_type(value):
    with pytest.raises(InvalidType, match=r"\bdelta must be .*, got ") as caught:
        accounting.epsilon(EVENT, value)
    assert shown(value, caught)


@pytest.mark.parametrize("value", [-0.1, -3, math.nan, math.inf, -math.inf])
def test_epsilon_out_of_range(value):
    with pytest.raises(InvalidInput, match=r"\bepsilon must be .*, got ") as caught:
        accounting.delta(EVENT, value)
    assert shown(value, caught)


@pytest.mark.parametrize("value", NOT_NUMBERS)
def test_epsilon_of_the_wrong_type(value):
    with pytest.raises(InvalidType, match=r"\bepsilon must be .*, got ") as caught:
        accounting.delta(EVENT, value)
    assert shown(value, caught)


ASK = [lambda events: accounting.epsilon(events, 1e-5), lambda events: accounting.delta(events, 1.0), accounting.curve]
ASK_IDS = ["epsilon", "delta", "curve"]


@pytest.mark.parametrize("ask", ASK, ids=ASK_IDS)
def test_empty_list(ask):
    with pytest.raises(InvalidInput, match=r"\bevents must hold at least one event, got an empty list"):
        ask([])


@pytest.mark.parametrize("ask", ASK, ids=ASK_IDS)
@pytest.mark.parametrize("value", [None, 1.0, "training", {"kind": "training"}])
def test_not_events(ask, value):
    with pytest.raises(InvalidType, match=r"\bevents must be an event or a list of events, got ") as caught:
        ask(value)
    assert shown(value, caught)


@pytest.mark.parametrize("ask", ASK, ids=ASK_IDS)
def test_a_stranger_in_the_list(ask):
    with pytest.raises(InvalidType, match=r"\bevents must hold events only, got 0\.1"):
        ask([EVENT, 0.1])


@pytest.mark.parametrize("value", ["twins", "", None, 1, "ADD_OR_REMOVE"])
def test_unknown_neighbours(value):
    for ask in (
        lambda: accounting.epsilon(EVENT, 1e-5, value),
        lambda: accounting.delta(EVENT, 1.0, value),
        lambda: accounting.curve(EVENT, value),
    ):
        with pytest.raises(InvalidInput, match=r"\bneighbours must be one of .*'add_or_remove'.*, got ") as caught:
            ask()
        assert shown(value, caught)


# ---------------------------------------------------------------- combinations without a sound answer


@pytest.mark.parametrize("gradient", [2.0, None])
def test_sampled_laplace_under_replacement(gradient):
    event = TrainingEvent(0.1, 10, gradient, 3.0, "laplace")
    for ask in (
        lambda: accounting.epsilon(event, 1e-5, "replace_one"),
        lambda: accounting.delta([EVENT, event], 1.0, "replace_one"),
        lambda: accounting.curve(event, "replace_one"),
    ):
        with pytest.raises(UnsupportedCombination, match=r"replace_one.*histogram='laplace'.*use histogram='gaussian'"):
            ask()


@pytest.mark.parametrize(
    ("stated", "asked"),
    [("add_or_remove", "replace_one"), ("replace_one", "add_or_remove"), ("replace_one", "zero_out")],
)
def test_outside_guarantee_for_other_neighbours(stated, asked):
    outside = OutsideEvent(0.5, 1e-7, stated)
    for events in (outside, [EVENT, outside], SelectionEvent((outside,), 5.0)):
        with pytest.raises(UnsupportedCombination) as caught:
            accounting.epsilon(events, 1e-5, asked)
        assert stated in str(caught.value)
        assert asked in str(caught.value)


# ---------------------------------------------------------------- infinite on purpose, never by accident


def test_unprotected_is_infinite_and_says_so():
    assert accounting.epsilon(UnprotectedEvent(), 1e-5) == math.inf
    assert accounting.epsilon([EVENT, UnprotectedEvent()], 1e-5) == math.inf
    assert accounting.epsilon(SelectionEvent((UnprotectedEvent(),), 5.0), 1e-5) == math.inf
    assert accounting.delta([EVENT, UnprotectedEvent()], 50.0) == 1.0


# ---------------------------------------------------------------- calibration


CALIBRATE = {"epsilon": 1.0, "delta": 1e-5, "sampling_rate": 0.1, "steps": 100}
OUT_OF_RANGE = {
    "epsilon": [0, -1, math.nan, math.inf],
    "delta": [0, -1e-9, 1, 1.5, math.nan],
    "sampling_rate": [0, -0.1, 1.01, math.nan, math.inf],
    "steps": [0, -1, 1.5, math.nan, math.inf],
    "histogram_share": [0, 1, -0.1, 1.5, math.nan],
}
FUNCTIONS = {"calibrate": (CALIBRATE, ("epsilon", "delta", "sampling_rate", "steps", "histogram_share"))}
OUTSIDE_OF_RANGE = [
    (function, name, value)
    for function, (_, names) in FUNCTIONS.items()
    for name in names
    for value in OUT_OF_RANGE[name]
]


@pytest.mark.parametrize(("function", "name", "value"), OUTSIDE_OF_RANGE)
def test_calibration_out_of_range(function, name, value):
    arguments = {**FUNCTIONS[function][0], name: value}
    with pytest.raises(InvalidInput, match=rf"\b{name} must be .*, got ") as caught:
        getattr(accounting, function)(**arguments)
    assert shown(value, caught)


@pytest.mark.parametrize(
    ("function", "name"), [(function, name) for function, (_, names) in FUNCTIONS.items() for name in names]
)
def test_calibration_with_the_wrong_type(function, name):
    for value in ("1", [1.0], True):
        with pytest.raises(InvalidType, match=rf"\b{name} must be .*, got ") as caught:
            getattr(accounting, function)(**{**FUNCTIONS[function][0], name: value})
        assert shown(value, caught)


@pytest.mark.parametrize("function", list(FUNCTIONS))
def test_calibration_with_unknown_words(function):
    arguments = FUNCTIONS[function][0]
    if function != "calibrate":
        arguments = {**arguments, "histogram_noise": 5.0}
    with pytest.raises(InvalidInput, match=r"\bhistogram must be one of .*, got 'cauchy'"):
        getattr(accounting, function)(**arguments, histogram="cauchy")
    with pytest.raises(InvalidInput, match=r"\bneighbours must be one of .*, got 'twins'"):
        getattr(accounting, function)(**arguments, neighbours="twins")


def test_calibration_of_sampled_laplace_under_replacement():
    with pytest.raises(UnsupportedCombination, match=r"replace_one.*histogram='laplace'.*use histogram='gaussian'"):
        accounting.calibrate(**CALIBRATE, histogram="laplace", neighbours="replace_one")


def test_laplace_histogram_without_its_scale():
    with pytest.raises(InvalidInput, match=r"^histogram_noise is missing for histogram='laplace'"):
        TrainingEvent(0.1, 1, 5.0, histogram="laplace")


def test_private_numbers_are_not_needed_to_say_what_is_wrong():
    with pytest.raises(InvalidInput) as caught:
        accounting.epsilon(GaussianEvent(1.0), 1.5)
    assert len(str(caught.value)) < 300
