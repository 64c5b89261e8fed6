"""What must hold for every accountant, wherever it is asked: order, limits, inverses, no surprises."""

from __future__ import annotations

import json
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import rdp
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ratewise import accounting
from ratewise.accounting import (
    Event,
    GaussianEvent,
    LaplaceEvent,
    OutsideEvent,
    SelectionEvent,
    TrainingEvent,
    event_from_dict,
)

WIGGLE = 1e-3  # upper limits move a little with their grid; the order they tell may not
many = settings(deadline=None, max_examples=40, derandomize=True)
quick = settings(deadline=None, max_examples=20, derandomize=True)
slow = settings(deadline=None, max_examples=10, derandomize=True)


def logarithmic(low: float, high: float) -> st.SearchStrategy[float]:
    """Every order of magnitude is as likely as the others; the ends are exact."""
    return st.floats(math.log(low), math.log(high)).map(lambda x: min(max(math.exp(x), low), high))


rates = logarithmic(1e-6, 1.0)
noises = logarithmic(0.2, 1000.0)
deltas = logarithmic(1e-12, 1e-2)
step_counts = logarithmic(1, 1_000_000).map(round)
laws = st.sampled_from(["gaussian", "laplace", None])


@st.composite
def trainings(draw: st.DrawFn, laws: st.SearchStrategy[str | None] = laws) -> TrainingEvent:
    """Any phase of the promised range."""
    law = draw(laws)
    noise = draw(noises) if law else None
    return TrainingEvent(draw(rates), draw(step_counts), draw(noises), noise, law)


@st.composite
def sensible(draw: st.DrawFn, laws: st.SearchStrategy[str | None] = laws) -> TrainingEvent:
    """Phases with an epsilon that somebody could want."""
    rate = draw(logarithmic(1e-3, 1.0))
    steps = draw(logarithmic(1, 10_000).map(round))
    size = max(0.7, rate * math.sqrt(steps)) * draw(logarithmic(0.7, 10.0))
    law = draw(laws)
    return TrainingEvent(rate, steps, size, size * draw(logarithmic(0.5, 5.0)) if law else None, law)


events = st.one_of(
    sensible(),
    st.builds(GaussianEvent, logarithmic(1.0, 50.0), st.integers(1, 3)),
    st.builds(LaplaceEvent, logarithmic(1.0, 50.0), st.integers(1, 3)),
    st.builds(OutsideEvent, logarithmic(0.01, 1.0), st.sampled_from([0.0, 1e-9])),
)


def not_above(smaller: float, larger: float) -> None:
    assert smaller <= larger * (1 + WIGGLE) + 1e-9


# ---------------------------------------------------------------- the whole promised range


@many
@given(trainings(), deltas)
def test_epsilon_is_a_number_everywhere(event, delta):
    found = accounting.epsilon(event, delta)
    assert type(found) is float
    assert 0 <= found < math.inf


@quick
@given(trainings(), logarithmic(0.01, 50.0))
def test_delta_is_a_probability_everywhere(event, epsilon):
    found = accounting.delta(event, epsilon)
    assert type(found) is float
    assert 0 <= found <= 1


@quick
@given(trainings(laws=st.sampled_from(["gaussian", None])), deltas)
def test_never_above_the_moments(event, delta):
    """Renyi divergences, composed by another library, limit epsilon from above."""
    inverse = [1 / event.gradient_noise] + ([1 / event.histogram_noise] if event.histogram else [])
    accountant = rdp.RdpAccountant()
    gaussian = dp_accounting.GaussianDpEvent(1 / math.hypot(*inverse))
    sampled = dp_accounting.PoissonSampledDpEvent(event.sampling_rate, gaussian)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("absl.logging.warning", lambda *_: None)
        accountant.compose(sampled, event.steps)
        moments = float(accountant.get_epsilon(delta))
    assert accounting.epsilon(event, delta) <= 1.01 * moments + 1e-9


# ---------------------------------------------------------------- order


@quick
@given(sensible(), deltas, st.floats(1.05, 4.0))
def test_more_noise_costs_less(event, delta, factor):
    base = accounting.epsilon(event, delta)
    louder = TrainingEvent(
        event.sampling_rate, event.steps, event.gradient_noise * factor, event.histogram_noise, event.histogram
    )
    not_above(accounting.epsilon(louder, delta), base)
    if event.histogram:
        louder = TrainingEvent(
            event.sampling_rate, event.steps, event.gradient_noise, event.histogram_noise * factor, event.histogram
        )
        not_above(accounting.epsilon(louder, delta), base)


@quick
@given(sensible(), deltas, st.floats(1.05, 4.0))
def test_more_steps_cost_more(event, delta, factor):
    more = event.with_steps(math.ceil(event.steps * factor))
    not_above(accounting.epsilon(event, delta), accounting.epsilon(more, delta))


@quick
@given(sensible(), deltas, st.floats(1.05, 4.0))
def test_a_higher_rate_costs_more(event, delta, factor):
    rate = min(1.0, event.sampling_rate * factor)
    more = TrainingEvent(rate, event.steps, event.gradient_noise, event.histogram_noise, event.histogram)
    not_above(accounting.epsilon(event, delta), accounting.epsilon(more, delta))


@quick
@given(sensible(), deltas, st.floats(1.05, 100.0))
def test_a_smaller_delta_costs_more(event, delta, factor):
    not_above(accounting.epsilon(event, delta), accounting.epsilon(event, delta / factor))


@quick
@given(sensible(), logarithmic(0.01, 10.0), st.floats(1.05, 4.0))
def test_delta_falls_with_epsilon(event, epsilon, factor):
    assert accounting.delta(event, epsilon * factor) <= accounting.delta(event, epsilon) * (1 + 1e-6) + 1e-15


@slow
@given(events, events, deltas)
def test_another_event_never_lowers_epsilon(first, second, delta):
    both = accounting.epsilon([first, second], delta)
    not_above(max(accounting.epsilon(first, delta), accounting.epsilon(second, delta)), both)


@slow
@given(sensible(), events, deltas)
def test_together_at_most_the_sum(first, second, delta):
    """Basic composition at half of delta each is an upper limit for the list (up to the allowed 1%)."""
    both = accounting.epsilon([first, second], delta)
    apart = accounting.epsilon(first, delta / 2) + accounting.epsilon(second, delta / 2)
    assert both <= 1.01 * apart + 1e-9


@slow
@given(sensible(laws=st.sampled_from(["gaussian", None])), deltas)
def test_replacing_costs_more_than_removing(event, delta):
    replaced = accounting.epsilon(event, delta, "replace_one")
    not_above(accounting.epsilon(event, delta), replaced)
    assert replaced < math.inf


@quick
@given(sensible(), deltas)
def test_zero_out_is_priced_like_removal(event, delta):
    assert accounting.epsilon(event, delta, "zero_out") == pytest.approx(accounting.epsilon(event, delta), rel=1e-12)


@slow
@given(st.sampled_from(["gaussian", "laplace"]), logarithmic(0.01, 1.0), logarithmic(1, 300).map(round))
def test_a_shared_sample_costs_at_least_as_much_as_either_release(law, rate, steps):
    joint = accounting.epsilon(TrainingEvent(rate, steps, 3.0, 4.0, law), 1e-6)
    not_above(accounting.epsilon(TrainingEvent(rate, steps, 3.0), 1e-6), joint)
    not_above(accounting.epsilon(TrainingEvent(rate, steps, None, 4.0, law), 1e-6), joint)


# ---------------------------------------------------------------- the same question in other words


@quick
@given(sensible(), deltas)
def test_epsilon_and_delta_are_inverse(event, delta):
    epsilon = accounting.epsilon(event, delta)
    # two upper bounds, each on a grid of its own (for one step of rate 0.0025, 0.0023 apart)
    assert accounting.delta(event, epsilon) <= delta * (1 + 5e-3)
    if epsilon > 1e-3:
        assert accounting.delta(event, epsilon * 0.99) >= delta * (1 - 1e-6)


@slow
@given(sensible())
def test_curve_answers_like_the_functions(event):
    curve = accounting.curve(event)
    epsilons = np.array([0.1, 0.5, 2.0])
    for one, many in zip(epsilons, curve.deltas(epsilons), strict=True):
        assert curve.delta(float(one)) == pytest.approx(many, rel=1e-3, abs=1e-12)
        assert accounting.delta(event, float(one)) == pytest.approx(many, rel=0.01, abs=1e-12)
    for one in (1e-9, 1e-5, 1e-3):
        assert accounting.epsilon(event, one) == pytest.approx(curve.epsilon(one), rel=5e-3, abs=1e-6)
    assert (np.diff(curve.deltas(np.linspace(0, 5, 50))) <= 1e-15).all()


@slow
@given(st.lists(events, min_size=2, max_size=3), deltas, st.randoms(use_true_random=False))
def test_order_of_events_does_not_matter(chosen, delta, random):
    assume(sum(e.delta for e in chosen if isinstance(e, OutsideEvent)) < delta / 2)
    shuffled = list(chosen)
    random.shuffle(shuffled)
    assert accounting.epsilon(shuffled, delta) == pytest.approx(accounting.epsilon(chosen, delta), rel=1e-9)


@slow
@given(sensible(), deltas, st.integers(2, 5))
def test_a_phase_may_be_cut_into_pieces(event, delta, pieces):
    assume(event.steps > pieces)
    cut = [event.with_steps(event.steps // pieces)] * (pieces - 1)
    cut.append(event.with_steps(event.steps - (pieces - 1) * (event.steps // pieces)))
    assert accounting.epsilon(cut, delta) == pytest.approx(accounting.epsilon(event, delta), rel=5e-3, abs=1e-9)


@quick
@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 1000), st.sampled_from(["gaussian", "laplace"]))
def test_integers_are_floats(gradient, histogram, steps, law):
    whole = TrainingEvent(1, steps, gradient, histogram, law)
    spelled = TrainingEvent(1.0, float(steps), float(gradient), float(histogram), law)
    assert accounting.epsilon(whole, 1e-5) == accounting.epsilon(spelled, 1e-5)
    assert accounting.delta(whole, 2) == accounting.delta(spelled, 2.0)
    assert accounting.epsilon(GaussianEvent(gradient), 1e-5) == accounting.epsilon(GaussianEvent(float(gradient)), 1e-5)


def described(event: Event) -> Event:
    return event_from_dict(json.loads(json.dumps(event.to_dict(), allow_nan=False)))


@settings(deadline=None, max_examples=100, derandomize=True)
@given(
    st.one_of(
        events,
        trainings(),
        st.builds(SelectionEvent, st.lists(events, min_size=1, max_size=3).map(tuple), logarithmic(1.1, 1000.0)),
    )
)
def test_round_trip_through_json(event):
    assert described(event) == event


# ---------------------------------------------------------------- calibration


@many
@given(
    logarithmic(0.01, 50.0),
    logarithmic(1e-12, 1e-3),
    logarithmic(1e-4, 1.0),
    logarithmic(1, 100_000).map(round),
    laws,
    st.floats(0.02, 0.95),
)
def test_calibration_keeps_and_uses_the_target(epsilon, delta, rate, steps, law, share):
    found = accounting.calibrate(epsilon, delta, rate, steps, histogram=law, histogram_share=share)
    spent = accounting.epsilon(found.event, delta)
    assert 0.999 * epsilon <= spent <= epsilon
    assert 0 < found.gradient_noise < math.inf
    if law:
        assert found.histogram_noise * math.sqrt(share) == pytest.approx(
            found.gradient_noise * math.sqrt(1 - share), rel=1e-9
        )
