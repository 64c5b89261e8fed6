"""Events: plain, frozen, readable back, and the same in dp-accounting's words."""

from __future__ import annotations

import dataclasses
import json
import math

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting import pld

from ratewise import accounting
from ratewise.accounting import (
    GaussianEvent,
    LaplaceEvent,
    OutsideEvent,
    SelectionEvent,
    ThresholdEvent,
    TrainingEvent,
    UnprotectedEvent,
    event_from_dict,
    to_dp_event,
)
from ratewise.accounting.events import as_events, join_gaussian_noise
from ratewise.exceptions import InvalidInput, InvalidType, UnsupportedCombination

EVERY_KIND = [
    TrainingEvent(0.02, 1000, 4.0, 2.0),
    TrainingEvent(0.02, 1000, 4.0, 2.0, "laplace"),
    TrainingEvent(1.0, 1, 4.0),
    TrainingEvent(0.5, 3, None, 2.0, "laplace"),
    GaussianEvent(3.0, 2),
    LaplaceEvent(0.5),
    SelectionEvent((TrainingEvent(0.1, 10, 2.0), GaussianEvent(9.0)), 10.0),
    OutsideEvent(0.5, 1e-6, "replace_one", "a vendor's table"),
    UnprotectedEvent("raw means"),
]


@pytest.mark.parametrize("event", EVERY_KIND, ids=lambda event: event.kind)
def test_round_trip_through_json(event):
    text = json.dumps(event.to_dict(), allow_nan=False)
    assert event_from_dict(json.loads(text)) == event


@pytest.mark.parametrize("event", EVERY_KIND, ids=lambda event: event.kind)
def test_events_are_frozen_and_can_be_keys(event):
    name = dataclasses.fields(event)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(event, name, 1.0)
    assert {event: 1}[event_from_dict(event.to_dict())] == 1


def test_integers_numpy_numbers_and_floats_are_the_same_event():
    plain = TrainingEvent(1.0, 10, 4.0, 2.0)
    assert TrainingEvent(1, 10.0, 4, np.float32(2)) == plain
    assert TrainingEvent(np.float64(1), np.int64(10), np.int32(4), 2) == plain
    found = TrainingEvent(1, 10.0, 4, np.int64(2)).to_dict()
    assert [type(found[k]) for k in ("sampling_rate", "steps", "gradient_noise")] == [float, int, float]
    assert json.loads(json.dumps(found)) == found


def test_no_histogram_has_one_spelling():
    assert TrainingEvent(0.1, 5, 2.0) == TrainingEvent(0.1, 5, 2.0, None, None)
    assert TrainingEvent(0.1, 5, 2.0).histogram is None


def test_joint_noise_collapses_gaussians_only():
    assert TrainingEvent(0.1, 5, 3.0, 4.0).joint_gaussian_noise == pytest.approx(2.4)
    assert TrainingEvent(0.1, 5, 3.0, 4.0).laplace_scale is None
    assert TrainingEvent(0.1, 5, 3.0, 4.0, "laplace").joint_gaussian_noise == pytest.approx(3.0)
    assert TrainingEvent(0.1, 5, 3.0, 4.0, "laplace").laplace_scale == 4.0
    assert TrainingEvent(0.1, 5, None, 4.0, "laplace").joint_gaussian_noise is None
    assert TrainingEvent(0.1, 5, None, 4.0).joint_gaussian_noise == pytest.approx(4.0)


def test_joint_noise_survives_extreme_sizes():
    assert join_gaussian_noise([1e-200, 1e-200]) == pytest.approx(1e-200 / math.sqrt(2))
    assert join_gaussian_noise([1e200, 1e200]) == pytest.approx(1e200 / math.sqrt(2))


def test_with_steps_keeps_the_rest():
    event = TrainingEvent(0.1, 5, 3.0, 4.0, "laplace")
    assert event.with_steps(9) == TrainingEvent(0.1, 9, 3.0, 4.0, "laplace")
    with pytest.raises(InvalidInput, match=r"steps must be at least 1, got 0"):
        event.with_steps(0)


# ---------------------------------------------------------------- in the words of dp-accounting


def test_conversions_compose_as_dp_accounting_says():
    """Against dp-accounting's own composition of the same releases, by its privacy loss distributions."""
    events = [TrainingEvent(0.1, 50, 5, 12), GaussianEvent(9, 2), LaplaceEvent(20, 3)]
    converted, written = pld.PLDAccountant(), pld.PLDAccountant()
    for event in events:
        converted.compose(to_dp_event(event))
    written.compose(dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(1 / math.hypot(1 / 5, 1 / 12))), 50)
    written.compose(dp.GaussianDpEvent(9.0), 2).compose(dp.LaplaceDpEvent(20.0), 3)
    assert converted.get_epsilon(1e-5) == pytest.approx(written.get_epsilon(1e-5), rel=1e-9)
    assert converted.get_epsilon(1e-5) == pytest.approx(accounting.epsilon(events, 1e-5), rel=1e-3)


def test_conversion_of_releases_of_all_rows_and_of_selections():
    both = dp.ComposedDpEvent([dp.GaussianDpEvent(4.0), dp.LaplaceDpEvent(2.0)])
    assert to_dp_event(TrainingEvent(1, 3, 4, 2, "laplace")) == dp.SelfComposedDpEvent(both, 3)
    candidate = dp.ComposedDpEvent([dp.SelfComposedDpEvent(dp.LaplaceDpEvent(3.0), 1)])
    selected = dp.dp_event.RepeatAndSelectDpEvent(candidate, 2.5, 1.0)
    assert to_dp_event(SelectionEvent((LaplaceEvent(3),), 2.5)) == selected
    assert to_dp_event(UnprotectedEvent("raw means")) == dp.NonPrivateDpEvent()


@pytest.mark.parametrize(
    "event",
    [
        TrainingEvent(0.1, 5, 3.0, 4.0, "laplace"),
        ThresholdEvent(3.0, 1e-6),
        OutsideEvent(0.5),
        SelectionEvent((ThresholdEvent(3.0, 1e-6),), 5.0),
    ],
    ids=lambda event: event.kind,
)
def test_what_dp_accounting_does_not_know_is_refused(event):
    for convert in (to_dp_event, lambda event: accounting.rdp_epsilon(event, 1e-5)):
        with pytest.raises(UnsupportedCombination, match=r"no event for .*; use ratewise\.accounting\.epsilon"):
            convert(event)


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize("value", [0, -0.1, 1.5, math.nan, math.inf, -math.inf, 10**400])
def test_sampling_rate_must_be_a_fraction(value):
    with pytest.raises(InvalidInput, match=r"^sampling_rate must be .*, got ") as caught:
        TrainingEvent(value, 10, 1.0)
    assert repr(value)[:20] in str(caught.value)


@pytest.mark.parametrize("value", [0, -3, 2.5, math.nan, math.inf])
def test_steps_must_be_a_count(value):
    with pytest.raises(InvalidInput, match=r"^steps must be .*, got ") as caught:
        TrainingEvent(0.1, value, 1.0)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("name", ["gradient_noise", "histogram_noise"])
def test_noise_must_be_positive(name, value):
    arguments = {"gradient_noise": 1.0, "histogram_noise": 1.0, name: value}
    with pytest.raises(InvalidInput, match=rf"^{name} must be .*, got .*None means no") as caught:
        TrainingEvent(0.1, 10, **arguments)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize("value", ["0.1", None, True, [0.1], 1 + 0j, np.array([0.1])])
def test_wrong_types_are_type_errors(value):
    with pytest.raises(InvalidType, match=r"^sampling_rate must be a number, got "):
        TrainingEvent(value, 10, 1.0)
    with pytest.raises(InvalidType, match=r"^steps must be a number, got "):
        TrainingEvent(0.1, value, 1.0)
    with pytest.raises(InvalidType, match=r"^noise must be a number, got "):
        GaussianEvent(value)
    with pytest.raises(InvalidType, match=r"^epsilon must be a number, got "):
        OutsideEvent(value)


@pytest.mark.parametrize("cls", [GaussianEvent, LaplaceEvent])
def test_plain_releases_check_their_numbers(cls):
    for value in (0, -2.0, math.nan, math.inf):
        with pytest.raises(InvalidInput, match=r"^noise must be .*, got ") as caught:
            cls(value)
        assert repr(value) in str(caught.value)
    with pytest.raises(InvalidInput, match=r"^count must be at least 1, got 0"):
        cls(1.0, 0)


def test_histogram_law_and_noise_must_fit():
    with pytest.raises(InvalidInput, match=r"^histogram must be one of 'gaussian', 'laplace', None, got 'cauchy'"):
        TrainingEvent(0.1, 10, 1.0, 1.0, "cauchy")
    with pytest.raises(InvalidInput, match=r"^histogram_noise is missing for histogram='laplace'"):
        TrainingEvent(0.1, 10, 1.0, None, "laplace")
    with pytest.raises(InvalidInput, match=r"^histogram is None but histogram_noise is 2"):
        TrainingEvent(0.1, 10, 1.0, 2.0, None)
    with pytest.raises(InvalidInput, match=r"gradient_noise or histogram_noise, got None for both"):
        TrainingEvent(0.1, 10, None)


def test_selection_checks_its_trials():
    inner = (GaussianEvent(1.0),)
    with pytest.raises(InvalidInput, match=r"^mean_trials must be above 1, got 1;"):
        SelectionEvent(inner, 1)
    with pytest.raises(InvalidInput, match=r"^mean_trials must be above 0, got -2"):
        SelectionEvent(inner, -2)
    with pytest.raises(InvalidInput, match=r"^candidate must hold at least one event, got an empty list"):
        SelectionEvent((), 10)
    with pytest.raises(InvalidType, match=r"^candidate must hold events only, got 3"):
        SelectionEvent((3,), 10)


def test_outside_guarantee_checks_its_numbers():
    with pytest.raises(InvalidInput, match=r"^epsilon must be at least 0, got -1"):
        OutsideEvent(-1)
    with pytest.raises(InvalidInput, match=r"^epsilon must be finite, got inf"):
        OutsideEvent(math.inf)
    with pytest.raises(InvalidInput, match=r"^delta must be below 1, got 1"):
        OutsideEvent(1.0, 1)
    with pytest.raises(InvalidInput, match=r"^delta must be at least 0, got -1e-06"):
        OutsideEvent(1.0, -1e-6)
    with pytest.raises(InvalidInput, match=r"^neighbours must be one of .*, got 'twins'"):
        OutsideEvent(1.0, 0, "twins")
    with pytest.raises(InvalidType, match=r"^description must be text, got 7"):
        OutsideEvent(1.0, 0, description=7)


@pytest.mark.parametrize("value", ["training", b"x", {"kind": "gaussian"}, 3, None])
def test_a_list_of_events_is_asked_for(value):
    with pytest.raises(InvalidType, match=r"^events must be an event or a list of events, got "):
        as_events(value)


def test_an_empty_list_is_refused():
    for value in ([], (), iter(())):
        with pytest.raises(InvalidInput, match=r"^events must hold at least one event, got an empty list"):
            as_events(value)


@pytest.mark.parametrize(
    ("description", "error", "message"),
    [
        ("gaussian", InvalidType, r"must be a mapping, got 'gaussian'"),
        ({}, InvalidInput, r"^kind must be one of .*training.*, got None"),
        ({"kind": "magic"}, InvalidInput, r"^kind must be one of .*, got 'magic'"),
        ({"kind": ["gaussian"]}, InvalidInput, r"^kind must be one of .*, got \['gaussian'\]"),
        ({"kind": "gaussian"}, InvalidInput, r"^a gaussian event has missing or unknown fields: .*noise"),
        ({"kind": "gaussian", "noise": 1, "count": 1, "colour": 2}, InvalidInput, r"unknown fields: colour;"),
        ({"kind": "gaussian", "noise": -1, "count": 1}, InvalidInput, r"^noise must be above 0, got -1"),
        ({"kind": "gaussian", "noise": "1", "count": 1}, InvalidType, r"^noise must be a number, got '1'"),
        ({"kind": "selection", "mean_trials": 9}, InvalidInput, r"unknown fields: candidate;"),
        ({"kind": "selection", "candidate": [3], "mean_trials": 9}, InvalidType, r"must be a mapping, got 3"),
        ({"kind": "selection", "candidate": 3, "mean_trials": 9}, (InvalidInput, InvalidType), r"candidate"),
    ],
)
def test_bad_descriptions(description, error, message):
    with pytest.raises(error, match=message):
        event_from_dict(description)


def test_unsupported_combinations_are_value_errors():
    assert issubclass(UnsupportedCombination, InvalidInput)
    assert issubclass(InvalidInput, ValueError)
    assert issubclass(InvalidType, TypeError)


# --- threshold releases -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("relation", ["add_or_remove", "replace_one"])
def test_a_threshold_release_costs_its_gaussian_and_its_delta(relation):
    """x + (1 - x) d(e) with d the Gaussian curve: never less than the Gaussian, never more than delta added."""
    event, own = ThresholdEvent(4.0, 1e-6), 1e-6
    gaussian = accounting.curve(GaussianEvent(4.0), relation)
    for epsilon in (0.0, 0.5, 1.0, 3.0):
        exact = own + (1 - own) * gaussian.delta(epsilon)
        assert accounting.delta(event, epsilon, relation) == pytest.approx(exact, rel=1e-9)
    assert accounting.epsilon(event, 1e-5, relation) == pytest.approx(gaussian.epsilon(9e-6), rel=1e-5)
    assert accounting.epsilon(event, 1e-6, relation) == math.inf
    assert accounting.epsilon([event, event], 1.9e-6) == math.inf
    assert math.isfinite(accounting.epsilon([event, event], 2.1e-6))


def test_threshold_releases_compose_with_everything():
    others = [TrainingEvent(0.1, 20, 3.0, 5.0), LaplaceEvent(9.0), OutsideEvent(0.1, 1e-8)]
    plain = accounting.epsilon([*others, GaussianEvent(6.0)], 9e-6)
    found = accounting.epsilon([*others, ThresholdEvent(6.0, 1e-6)], 1e-5)
    assert found == pytest.approx(plain, rel=1e-4)
    selected = SelectionEvent((ThresholdEvent(20.0, 1e-9),), 5.0)
    assert accounting.epsilon(selected, 1e-5) > accounting.epsilon(SelectionEvent((GaussianEvent(20.0),), 5.0), 1e-5)
    assert accounting.epsilon(selected, 4e-9) == math.inf  # five trials of 1e-9 each


def test_thresholds_have_no_other_description():
    event = ThresholdEvent(3, 1e-6)
    assert event_from_dict(event.to_dict()) == event
    assert event.to_dict() == {"kind": "threshold", "noise": 3.0, "delta": 1e-6}
    for wrong in (0, 1, -1e-6, math.nan):
        with pytest.raises(InvalidInput, match="delta must be"):
            ThresholdEvent(3.0, wrong)
