"""Attacks on the cap of a ledger: choose the next release by what the earlier ones have shown.

The attacker plays against two neighbouring data sets, admits on a real ledger, and decides after every output what to
ask for next. `true_delta` computes the largest delta at the cap's epsilon that any such strategy reaches, by
numerical integration of the privacy loss (dynamic programming over the loss so far), with code that shares nothing
with the accountant.
"""

import dataclasses
import functools
import math

import numpy as np
import pytest
from scipy.stats import norm

from ratewise.accounting import (
    Budget,
    GaussianEvent,
    LaplaceEvent,
    Ledger,
    OutsideEvent,
    SelectionEvent,
    ThresholdEvent,
    TrainingEvent,
    accountant,
    epsilon,
)
from ratewise.accounting import ledger as ledger_module
from ratewise.exceptions import BudgetExceeded, InvalidInput, LedgerError

CAP = Budget(1.0, 1e-5)
FIRST = GaussianEvent(10.0)
SECOND = (GaussianEvent(1 / 0.2485), LaplaceEvent(1 / 0.6765))


# --- the attacker -----------------------------------------------------------------------------------------


@functools.cache
def loss_law(event, way="remove"):
    """Return privacy losses and their probabilities under the first of two neighbours, by quadrature.

    "remove": the first has a row more; "add": the second; "replace": the rows are opposite.
    """
    rate = event.sampling_rate if isinstance(event, TrainingEvent) else 1.0
    noise = event.gradient_noise if isinstance(event, TrainingEvent) else event.noise
    if isinstance(event, LaplaceEvent):
        noise = noise / 2 if way == "replace" else noise
        inner = np.linspace(0, 1, 801)
        middle = (inner[1:] + inner[:-1]) / 2
        weight = np.exp(-np.abs(middle - 1) / noise) / (2 * noise) * np.diff(inner)
        ends = np.array([0.5 * math.exp(-1 / noise), 0.5])
        losses = np.concatenate([[-1 / noise], (2 * middle - 1) / noise, [1 / noise]])
        return losses, np.concatenate([[ends[0]], weight / weight.sum() * (1 - ends.sum()), [ends[1]]])
    x = np.linspace(-9 * noise - 1, 9 * noise + 1, 1601)

    def log_density(shift):
        kept = math.log1p(-rate) + norm.logpdf(x, 0, noise) if rate < 1 else -math.inf
        return np.logaddexp(kept, math.log(rate) + norm.logpdf(x, shift, noise))

    first, second = {"remove": (1, 0), "add": (0, 1), "replace": (1, -1)}[way]
    weight = np.exp(log_density(first))
    return log_density(first) - log_density(second), weight / weight.sum()


GRID = np.linspace(-6.0, 9.0, 6001)


def true_delta(ledger, menu, rounds, way="remove"):
    """Return the largest delta at the cap's epsilon that a strategy reaches within so many more releases.

    `menu` returns, for a ledger, what the attacker considers to ask for next.
    """
    return float(np.interp(0.0, GRID, _value(ledger, menu, rounds, way)))


def _value(ledger, menu, rounds, way):
    value = np.maximum(0.0, -np.expm1(ledger.cap.epsilon - GRID))
    if rounds == 0:
        return value
    for event in menu(ledger):
        after = Ledger.from_json(ledger.to_json())
        try:
            after.admit(event).release()
        except BudgetExceeded:
            continue
        later = _value(after, menu, rounds - 1, way)
        losses, weights = loss_law(event, way)
        found = np.zeros(len(GRID))
        for loss, weight in zip(losses, weights, strict=True):
            found += weight * np.interp(GRID + loss, GRID, later)
        value = np.maximum(value, found)
    return value


def largest(kinds):
    """Return a menu: of each kind of release, the least noisy one that the ledger admits."""

    def menu(ledger):
        found = []
        for kind in kinds:
            low, high = 0.2, 1000.0
            for _ in range(14):
                middle = math.sqrt(low * high)
                low, high = (middle, high) if ledger.would_exceed(kind(middle)) else (low, middle)
            found.append(kind(high))
        return found

    return menu


def sampled(rate):
    return lambda noise: TrainingEvent(rate, 1, gradient_noise=noise)


def begun(cap, first):
    ledger = Ledger(cap=cap)
    ledger.admit(first).release()
    return ledger


class CappedTotals(accountant.PrivacyFilter):
    """The filter disabled: a plan is admitted if the composed epsilon of everything stays within the cap."""

    def spent(self, plans):
        events = [event for plan in plans for event in plan]
        return epsilon(events, self.cap.delta, self.neighbours) / self.cap.epsilon


@pytest.fixture
def without_filter(monkeypatch):
    monkeypatch.setattr(ledger_module, "PrivacyFilter", CappedTotals)


# --- adaptive choices ---------------------------------------------------------------------------------------


def test_the_published_counter_example_stays_within_the_cap():
    ledger = begun(CAP, FIRST)
    admitted = [event for event in SECOND if not ledger.would_exceed(event)]
    assert len(admitted) < 2
    assert true_delta(Ledger(cap=CAP), lambda led: SECOND if led.records else (FIRST,), 2) <= CAP.delta


def test_capped_totals_admit_the_counter_example(without_filter):
    """The attack is effective: a cap on composed totals lets it reach nearly twice the cap's delta."""
    found = true_delta(Ledger(cap=CAP), lambda led: SECOND if led.records else (FIRST,), 2)
    assert found == pytest.approx(1.92e-5, rel=0.01)


MENUS = {
    "noise": (GaussianEvent, LaplaceEvent),
    "sampling rates": (sampled(0.05), sampled(0.5), GaussianEvent),
    "sampling rates and Laplace": (sampled(0.02), sampled(0.2), LaplaceEvent),
}


@pytest.mark.parametrize("cap", [CAP, Budget(0.3, 1e-6), Budget(4.0, 1e-5)], ids=str)
@pytest.mark.parametrize("kinds", MENUS.values(), ids=MENUS.keys())
@pytest.mark.parametrize("first", [FIRST, LaplaceEvent(20.0), sampled(0.1)(2.0)], ids=lambda e: e.kind)
def test_no_choice_of_the_largest_admitted_releases_passes_the_cap(cap, kinds, first):
    while Ledger(cap=cap).would_exceed(first):  # the same kind of release, with enough noise for the cap
        first = _noisier(first, 1.5)
    assert _played_from_the_start(cap, first, largest(kinds)) <= cap.delta


def _noisier(event, factor):
    name = "gradient_noise" if isinstance(event, TrainingEvent) else "noise"
    return dataclasses.replace(event, **{name: getattr(event, name) * factor})


def _played_from_the_start(cap, first, menu, way="remove", **terms):
    return true_delta(Ledger(cap=cap, **terms), lambda led: menu(led) if led.records else (first,), 2, way)


@pytest.mark.parametrize(
    ("way", "neighbours"), [("add", "add_or_remove"), ("remove", "zero_out"), ("replace", "replace_one")]
)
@pytest.mark.parametrize("kinds", MENUS.values(), ids=MENUS.keys())
def test_no_choice_passes_the_cap_under_other_relations(way, neighbours, kinds):
    first = GaussianEvent(20.0)
    assert _played_from_the_start(CAP, first, largest(kinds), way, neighbours=neighbours) <= CAP.delta


def test_capped_totals_fall_when_a_row_is_replaced(without_filter):
    kinds = MENUS["noise"]
    found = _played_from_the_start(CAP, GaussianEvent(20.0), largest(kinds), "replace", neighbours="replace_one")
    assert found > CAP.delta


@pytest.mark.parametrize("kinds", MENUS.values(), ids=MENUS.keys())
def test_capped_totals_fall_to_the_largest_admitted_releases(kinds, without_filter):
    assert _played_from_the_start(CAP, FIRST, largest(kinds)) > CAP.delta


def test_a_number_of_fits_that_depends_on_the_outputs_stays_within_the_cap():
    """Small and large fits in any order, as many as the ledger admits, stopping at will."""
    small, large, pure = GaussianEvent(12.0), GaussianEvent(6.0), LaplaceEvent(4.0)
    ledger = Ledger(cap=CAP)
    assert true_delta(ledger, lambda _: (small, large, pure), 4) <= CAP.delta


# --- what the filter must count -------------------------------------------------------------------------------


def shown_by_thresholds(own, most=200):
    """Return the probability that repeated threshold releases show a value which one row alone has."""
    ledger, hidden = Ledger(cap=CAP), 1.0
    for _ in range(most):
        if ledger.would_exceed(ThresholdEvent(1e4, own)):
            break
        ledger.admit(ThresholdEvent(1e4, own)).release()
        hidden *= 1 - own
    return 1 - hidden


@pytest.mark.parametrize("own", [1e-6, 3e-6, 1e-7])
def test_threshold_releases_show_a_unique_value_with_at_most_the_caps_delta(own):
    assert 0 < shown_by_thresholds(own) <= CAP.delta


def test_a_dropped_threshold_delta_is_noticed(monkeypatch):
    monkeypatch.setattr(accountant, "_threshold_delta", lambda events: 0.0)
    accountant._cost.cache_clear()
    shown = shown_by_thresholds(1e-6)
    accountant._cost.cache_clear()
    assert shown > CAP.delta


def test_thresholds_and_the_largest_gaussian_together_stay_within_the_cap():
    ledger = begun(CAP, ThresholdEvent(30.0, 4e-6))
    last = largest((GaussianEvent,))(ledger)[0]
    joint = GaussianEvent(1 / math.hypot(1 / 30.0, 1 / last.noise))
    losses, weights = loss_law(joint)
    assert 4e-6 + float(weights @ np.maximum(0, -np.expm1(CAP.epsilon - losses))) <= CAP.delta


@pytest.mark.parametrize(
    "event",
    [
        SelectionEvent((GaussianEvent(40.0),), mean_trials=10.0),
        SelectionEvent((TrainingEvent(0.05, 50, 5.0), GaussianEvent(60.0)), 5.0),
        SelectionEvent((ThresholdEvent(60.0, 1e-9),), mean_trials=3.0),
        OutsideEvent(0.3, 1e-7),
        TrainingEvent(0.1, 30, 20.0, 20.0, "laplace"),
    ],
    ids=repr,
)
def test_every_kind_of_event_has_a_price_in_the_filter(event):
    """What repeated admissions let through is, as a fixed list, within the cap: a filter is never the looser one."""
    ledger, count = Ledger(cap=CAP), 0
    while not ledger.would_exceed(event):
        ledger.admit(event).release()
        count += 1
        assert count < 100
    assert count >= 1
    assert ledger.total() <= CAP.epsilon


def test_one_plan_may_spend_the_whole_cap_and_nothing_follows():
    """Exact composition for the first plan alone: it is fixed before any output is seen."""
    ledger = Ledger(cap=CAP)
    whole = GaussianEvent(accountant.single_release_noise(CAP.epsilon, CAP.delta) * (1 + 1e-9))
    ledger.admit(whole).release()
    assert ledger.spent == 1.0
    for event in (GaussianEvent(1e9), LaplaceEvent(1e9), ThresholdEvent(1e9, 1e-12)):
        assert ledger.would_exceed(event)
        with pytest.raises(BudgetExceeded, match="first plan spends the whole cap"):
            ledger.admit(event)
    assert true_delta(Ledger(cap=CAP), lambda led: SECOND if led.records else (whole,), 2) <= CAP.delta * 1.001


def test_a_refused_first_plan_does_not_fix_the_order():
    ledger = Ledger(cap=CAP)
    with pytest.raises(BudgetExceeded):
        ledger.admit(GaussianEvent(0.5))
    assert ledger.records == ()


# --- fixed plans ------------------------------------------------------------------------------------------------


def test_a_fixed_plan_cannot_grow_after_a_release():
    ledger = Ledger(cap=CAP, adaptive=False)
    ledger.admit(FIRST)
    ledger.admit(GaussianEvent(20.0)).release()  # still before any output was seen
    for event in (GaussianEvent(1e6), ThresholdEvent(1e6, 1e-12)):
        with pytest.raises(LedgerError, match="fixed plan"):
            ledger.admit(event)
    with pytest.raises(LedgerError, match="fixed plan"):
        Ledger.from_json(ledger.to_json()).admit(GaussianEvent(1e6))


def test_an_uncapped_ledger_cannot_be_used_adaptively():
    ledger = Ledger()
    ledger.admit(FIRST).release()
    with pytest.raises(LedgerError, match=r"Ledger\(cap=Budget\(epsilon, delta\), adaptive=True\)"):
        ledger.admit(SECOND[0])
    with pytest.raises(ValueError, match="adaptive use needs a cap"):
        Ledger(adaptive=True)


def test_what_was_admitted_counts_although_it_was_not_released():
    """Skipping a planned release, by what earlier outputs say, must not make room or lower the statement."""
    ledger = Ledger(cap=CAP)
    plan = ledger.admit({"first": GaussianEvent(8.0), "second": GaussianEvent(8.0), "training": sampled(0.1)(4.0)})
    before = (ledger.spent, plan.statement().epsilon, ledger.total())
    plan.release("first")
    with plan.phase("training") as phase:
        phase.step()
    assert (ledger.spent, plan.statement().epsilon, ledger.total()) == before
    assert plan.released == {"first": 1, "second": 0, "training": 1}
    assert plan.statement().epsilon == epsilon(plan.events, CAP.delta)


def test_nothing_is_released_twice_on_one_admission():
    ledger = Ledger(cap=CAP)
    plan = ledger.admit({"counts": GaussianEvent(30.0), "training": TrainingEvent(0.1, 5, 20.0)})
    plan.release("counts")
    for key in ("counts", 0):
        with pytest.raises(BudgetExceeded, match="released already"):
            plan.release(key)
    with pytest.raises(InvalidInput, match="is not in this plan"):
        plan.release(GaussianEvent(30.0))
    with plan.phase("training") as phase:
        for _ in range(5):
            phase.step()
        with pytest.raises(BudgetExceeded, match="released already"):
            phase.step()
    with pytest.raises(BudgetExceeded, match="released already"), ledger.admission(plan.id).phase("training"):
        pytest.fail("the block must not run")


@pytest.mark.parametrize("adaptive", [True, False])
def test_the_ledger_says_which_use_it_is_for_and_what_that_costs(adaptive):
    ledger = Ledger(cap=CAP, adaptive=adaptive)
    assert ledger.adaptive is adaptive
    words = ledger.terms
    if adaptive:
        assert "adaptive use" in words
        assert "times the noise" in words
        ledger.admit(FIRST).release()
        assert ledger.statement().epsilon == CAP.epsilon  # a filter guarantees its cap, wherever somebody stops
        assert "17." in ledger.terms
    else:
        assert "fixed plan" in words
        assert "no extra cost" in words
        ledger.admit(FIRST).release()
        assert ledger.statement().epsilon == epsilon(FIRST, CAP.delta)
