"""The accountant against answers that were derived without it.

Requirement: never below the exact epsilon by more than 1e-9, never above it by more than 1%.
"""

from __future__ import annotations

import importlib.util
import math
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import dp_accounting
import numpy as np
import pytest
from dp_accounting import pld, rdp

from ratewise import accounting
from ratewise.accounting import (
    Event,
    GaussianEvent,
    LaplaceEvent,
    OutsideEvent,
    SelectionEvent,
    TrainingEvent,
    UnprotectedEvent,
)

_spec = importlib.util.spec_from_file_location("accounting_oracles", Path(__file__).with_name("accounting_oracles.py"))
assert _spec is not None
assert _spec.loader is not None
oracles = importlib.util.module_from_spec(_spec)
sys.modules.setdefault("accounting_oracles", oracles)
_spec.loader.exec_module(oracles)
Step = oracles.Step

BELOW = 1e-9
ABOVE = 1.01
NEIGHBOUR_WAYS = {"add_or_remove": ("remove", "add"), "zero_out": ("remove", "add"), "replace_one": ("replace",)}
DP_RELATIONS = {
    "add_or_remove": dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
    "replace_one": dp_accounting.NeighboringRelation.REPLACE_ONE,
    "zero_out": dp_accounting.NeighboringRelation.REPLACE_SPECIAL,
}


def step_of(event: Event) -> object:
    """The oracle's view of an event, from the raw numbers only."""
    if isinstance(event, TrainingEvent):
        gaussians = [event.gradient_noise] if event.gradient_noise is not None else []
        scale = None
        if event.histogram == "gaussian":
            gaussians.append(event.histogram_noise)
        elif event.histogram == "laplace":
            scale = event.histogram_noise
        sigma = 1 / math.sqrt(sum(1 / z**2 for z in gaussians)) if gaussians else None
        return Step(event.steps, event.sampling_rate, sigma, scale)
    if isinstance(event, GaussianEvent):
        return Step(event.count, 1.0, event.noise, None)
    assert isinstance(event, LaplaceEvent)
    return Step(event.count, 1.0, None, event.noise)


def steps_of(events: Event | Sequence[Event]) -> list[object]:
    return [step_of(event) for event in ([events] if isinstance(events, Event) else events)]


def assert_tight(ours: float, exact: float) -> None:
    assert exact - BELOW <= ours <= ABOVE * exact + BELOW


def pair(q: float, sigma: float | None, noise: float | None, steps: int, law: str = "laplace") -> TrainingEvent:
    return TrainingEvent(q, steps, sigma, noise, law if noise is not None else None)


# ---------------------------------------------------------------- the oracles agree with each other


@pytest.mark.parametrize("law", ["laplace", "gaussian"])
@pytest.mark.parametrize("direction", ["remove", "add"])
@pytest.mark.parametrize(("epsilon", "q", "sigma", "noise"), [(0.05, 0.1, 2.0, 1.5), (0.02, 0.5, 1.0, 0.8)])
def test_plane_integral_is_the_brute_force_sum(law, direction, epsilon, q, sigma, noise):
    fine = oracles.plane_delta(epsilon, q, sigma, noise, law, direction)
    coarse = oracles.lattice_delta(epsilon, q, sigma, noise, law, direction, points=1500)
    assert fine == pytest.approx(coarse, rel=1e-3, abs=1e-8)
    assert fine > 1e-6


@pytest.mark.parametrize("epsilon", [0.05, 0.3, 1.0])
def test_plane_integral_without_sampling_is_the_closed_form(epsilon):
    joint = 1 / math.hypot(1 / 2.0, 1 / 1.5)
    found = oracles.plane_delta(epsilon, 1.0, 2.0, 1.5, "gaussian", "remove")
    assert found == pytest.approx(oracles.gaussian_delta(epsilon, joint), rel=1e-9)
    # a gradient drowned in noise leaves the Laplace release alone
    found = oracles.plane_delta(epsilon, 1.0, 1e7, 0.8, "laplace", "add")
    assert found == pytest.approx(oracles.laplace_delta(epsilon, 0.8), rel=1e-5)


@pytest.mark.parametrize("direction", ["remove", "add"])
@pytest.mark.parametrize("epsilon", [-0.2, 0.0, 0.05])
def test_composition_at_one_step_is_the_plane_integral(direction, epsilon):
    found = oracles.exact_delta(Step(1, 0.1, 2.0, 1.5), epsilon, direction)
    assert found == pytest.approx(oracles.plane_delta(epsilon, 0.1, 2.0, 1.5, "laplace", direction), rel=1e-8)


def test_composition_of_unsampled_gaussians_is_the_closed_form():
    for steps, sigma, delta in [(1, 2.0, 1e-5), (100, 7.0, 1e-9), (10_000, 300.0, 1e-6)]:
        exact = oracles.gaussian_epsilon(delta, sigma / math.sqrt(steps))
        assert oracles.exact_epsilon(Step(steps, 1.0, sigma), delta) == pytest.approx(exact, abs=1e-9)
        assert oracles.exact_epsilon(Step(steps, 1.0, sigma), delta, directions=["replace"]) == pytest.approx(
            oracles.gaussian_epsilon(delta, sigma / 2 / math.sqrt(steps)), abs=1e-9
        )


BRACKETED = [
    ([Step(10, 0.1, 2.0, 1.5)], 1e-5, 5e-5),
    ([Step(100, 0.02, 1.0, None)], 1e-6, 4e-5),
    ([Step(20, 0.05, 1.0, None), Step(30, 0.1, 2.0, None), Step(1, 1.0, 3.0, None)], 1e-6, 1e-4),
]


@pytest.mark.parametrize(("steps", "delta", "width"), BRACKETED)
def test_composition_lies_inside_the_rigorous_bracket(steps, delta, width):
    bracket = oracles.bracket_epsilon(steps, delta, width)
    exact = oracles.exact_epsilon(steps, delta)
    assert bracket.low <= exact <= bracket.high
    assert bracket.high - bracket.low <= 0.01 * exact


def test_attack_stays_below_and_finds_most_of_epsilon():
    for step in (Step(1000, 0.02, 4.0), Step(1, 1.0, 2.0), Step(50, 0.3, 2.0, 1.5)):
        exact = oracles.exact_epsilon(step, 1e-5)
        assert 0.7 * exact <= oracles.attack_epsilon(step, 1e-5) <= exact + 1e-9


def test_monte_carlo_agrees_with_composition():
    for direction in ("remove", "add"):
        estimate = oracles.sampled_delta(0.3, 3, 0.2, 1.5, 1.0, "laplace", direction, draws=400_000, seed=5)
        exact = oracles.exact_delta(Step(3, 0.2, 1.5, 1.0), 0.3, direction)
        assert estimate.lower() <= exact <= estimate.upper()
        assert estimate.error < 0.02 * exact


# ---------------------------------------------------------------- published numbers


@pytest.mark.parametrize(
    ("q", "sigma", "scale", "steps", "published"),
    [(0.02, 4, 2, 1000, 1.353), (0.05, 4, 2, 1000, 3.774), (0.02, 1, 1, 1000, 6.481), (0.05, 1, 1, 1, 1.655)],
)
def test_shared_sample_table(q, sigma, scale, steps, published):
    event = pair(q, sigma, scale, steps)
    found = accounting.epsilon(event, 1e-5)
    assert found == pytest.approx(published, abs=1e-3)
    assert_tight(found, oracles.exact_epsilon(step_of(event), 1e-5))


@pytest.mark.parametrize(
    ("neighbours", "epsilon", "published"),
    [
        ("add_or_remove", 0.1, 0.00236421),
        ("zero_out", 0.1, 0.00236421),
        ("replace_one", 0.1, 0.00853209),
        ("add_or_remove", 0.0, 0.01974127),
        ("replace_one", 0.0, 0.03829249),
    ],
)
def test_published_deltas_of_one_step(neighbours, epsilon, published):
    found = accounting.delta(TrainingEvent(0.1, 1, 2.0), epsilon, neighbours)
    assert found == pytest.approx(published, rel=1e-4)
    assert found >= published * (1 - 1e-6)


@pytest.mark.parametrize(
    ("event", "neighbours", "published"),
    [
        (TrainingEvent(0.1, 10, 2.0), "add_or_remove", 0.79847),
        (TrainingEvent(0.1, 10, 2.0), "replace_one", 1.25283),
        (GaussianEvent(2.0), "add_or_remove", 1.99309),
        (GaussianEvent(2.0), "replace_one", 4.37718),
        (GaussianEvent(1.0), "add_or_remove", 4.37718),
        (TrainingEvent(1.0, 1, 2.0), "replace_one", 4.37718),
    ],
)
def test_published_epsilons(event, neighbours, published):
    assert accounting.epsilon(event, 1e-5, neighbours) == pytest.approx(published, rel=1e-4)


BASE = TrainingEvent(0.02, 1000, 1.5)


def test_published_base_of_selection():
    assert accounting.epsilon(BASE, 1e-6) == pytest.approx(2.244, abs=1e-3)
    assert accounting.rdp_epsilon([BASE], 1e-6) == pytest.approx(2.430, abs=1e-3)


@pytest.fixture(scope="module")
def base_curve():
    return oracles.tabulated(step_of(BASE), 4.0, points=24)


@pytest.mark.parametrize(("mean", "published"), [(10, 3.934), (100, 5.091)])
def test_selection_by_the_curve(base_curve, mean, published):
    found = accounting.epsilon(SelectionEvent((BASE,), mean), 1e-6)
    assert found == pytest.approx(published, rel=2e-3)
    exact = oracles.selection_epsilon(base_curve, mean, 1.0, 1e-6)
    assert exact - 1e-6 <= found <= ABOVE * exact


# ---------------------------------------------------------------- one step against the plane


PLANE = [
    # q, sigma, noise, deltas come from these epsilons
    (0.05, 1.0, 1.0, (0.05, 0.5, 1.5)),
    (0.3, 2.0, 0.7, (0.1, 0.6)),
    (0.9, 0.8, 3.0, (0.2, 2.0)),
    (0.001, 0.5, 0.5, (1.0,)),
    (1.0, 3.0, 2.0, (0.1, 0.9)),
]


@pytest.mark.parametrize("law", ["laplace", "gaussian"])
@pytest.mark.parametrize(("q", "sigma", "noise", "epsilons"), PLANE)
def test_one_step_against_the_plane(law, q, sigma, noise, epsilons):
    event = pair(q, sigma, noise, 1, law)
    for epsilon in epsilons:
        exact = max(oracles.plane_delta(epsilon, q, sigma, noise, law, way) for way in ("remove", "add"))
        assert accounting.delta(event, epsilon) >= exact * (1 - 1e-8) - 1e-15
        assert accounting.delta(event, ABOVE * epsilon) <= exact
        assert_tight(accounting.epsilon(event, exact), epsilon)


@pytest.mark.parametrize("parts", [(0.5, 0.5), (0.2, 0.8), (0.1, 0.3, 0.6)])
@pytest.mark.parametrize("scale", [0.4, 1.0, 3.0])
def test_spread_histogram_rows_lose_no_more_than_one_cell(parts, scale):
    """A row that spreads its unit over cells (soft predictions) is covered by the single-cell pair."""
    event = pair(0.2, 1.5, scale, 1)
    for epsilon in (0.05, 0.3, 0.8):
        assert oracles.split_delta(epsilon, 0.2, 1.5, scale, parts) <= accounting.delta(event, epsilon)


# ---------------------------------------------------------------- few steps against Monte Carlo


@pytest.mark.parametrize(
    ("steps", "q", "sigma", "noise", "law", "epsilon"),
    [
        (2, 0.3, 1.0, 1.0, "laplace", 1.0),
        (3, 0.2, 1.5, 0.8, "laplace", 0.5),
        (5, 0.1, 1.0, 1.5, "laplace", 0.6),
        (5, 0.5, 3.0, 4.0, "gaussian", 0.4),
        (2, 1.0, 2.0, 3.0, "laplace", 0.5),
        (3, 0.2, None, 0.7, "laplace", 0.4),
    ],
)
def test_few_steps_against_monte_carlo(steps, q, sigma, noise, law, epsilon):
    event = pair(q, sigma, noise, steps, law)
    runs = [
        oracles.sampled_delta(epsilon, steps, q, sigma, noise, law, way, draws=300_000, seed=steps)
        for way in ("remove", "add")
    ]
    found = accounting.delta(event, epsilon)
    assert found >= max(run.lower() for run in runs)
    assert accounting.delta(event, ABOVE * epsilon) <= max(run.upper() for run in runs)
    assert max(run.mean for run in runs) > 1e-3


# ---------------------------------------------------------------- many steps against exact composition


SETTINGS = [
    # q, sigma, histogram noise, law, steps, delta
    (0.02, 4.0, 2.0, "laplace", 1000, 1e-5),
    (0.2, 20.0, 14.0, "laplace", 200, 1e-5),
    (0.0016, 1.2, 2.5, "laplace", 12_000, 1e-5),
    (0.001, 0.8, 1.0, "laplace", 100, 1e-8),
    (0.01, 2.0, 0.5, "laplace", 50, 1e-6),
    (0.5, 50.0, 40.0, "laplace", 2000, 1e-10),
    (1.0, 10.0, 8.0, "laplace", 20, 1e-5),
    (1.0, 30.0, 20.0, "laplace", 1000, 1e-12),
    (0.02, 4.0, 2.0, "gaussian", 1000, 1e-5),
    (0.2, 20.0, 14.0, "gaussian", 200, 1e-5),
    (0.0016, 1.2, 2.5, "gaussian", 12_000, 1e-5),
    (0.1, 2.0, None, "gaussian", 10, 1e-5),
    (0.01, 0.7, None, "gaussian", 3000, 1e-7),
    (0.004, 1.0, None, "gaussian", 100_000, 1e-6),
    (1.0, 1000.0, None, "gaussian", 1_000_000, 1e-12),
    (0.3, 5.0, 1000.0, "laplace", 3, 1e-4),
    (0.3, 1000.0, 5.0, "laplace", 3000, 1e-4),
]


@pytest.mark.parametrize(("q", "sigma", "noise", "law", "steps", "delta"), SETTINGS)
def test_many_steps_against_exact_composition(q, sigma, noise, law, steps, delta):
    event = pair(q, sigma, noise, steps, law)
    exact = oracles.exact_epsilon(step_of(event), delta, tolerance=4e-10)
    assert_tight(accounting.epsilon(event, delta), exact)
    # the same statement, read the other way round
    assert accounting.delta(event, exact) >= delta * (1 - 1e-6)
    assert accounting.delta(event, ABOVE * exact) <= delta


def _unseen(count: int) -> list[tuple[TrainingEvent, float]]:
    rng = np.random.default_rng(20240)
    found = []
    for _ in range(count):
        q = float(10 ** rng.uniform(-3, -0.2))
        steps = int(10 ** rng.uniform(0.5, 4.5))
        size = max(0.6, float(q * math.sqrt(steps) * 10 ** rng.uniform(-0.3, 1.0)))
        share = rng.uniform(0.1, 0.9)
        law = "laplace" if rng.random() < 0.7 else "gaussian"
        gradient, histogram = size / math.sqrt(share), size / math.sqrt(1 - share)
        found.append((TrainingEvent(q, steps, gradient, histogram, law), float(10 ** rng.uniform(-12, -3))))
    return found


@pytest.mark.parametrize(("event", "delta"), _unseen(24))
def test_random_settings_against_exact_composition(event, delta):
    exact = oracles.exact_epsilon(step_of(event), delta, tolerance=5e-10)
    assert_tight(accounting.epsilon(event, delta), exact)


@pytest.mark.parametrize(
    ("q", "sigma", "steps", "delta"),
    [
        (0.1, 2.0, 10, 1e-5),
        (0.01, 1.0, 1000, 1e-6),
        (0.5, 8.0, 300, 1e-5),
        (0.003, 0.8, 5000, 1e-8),
        (1.0, 9.0, 30, 1e-9),
    ],
)
@pytest.mark.parametrize("neighbours", ["replace_one", "zero_out"])
def test_other_neighbours_against_exact_composition(q, sigma, steps, delta, neighbours):
    for noise in (None, 3.0):
        event = pair(q, sigma, noise, steps, "gaussian")
        ways = NEIGHBOUR_WAYS[neighbours]
        exact = oracles.exact_epsilon(step_of(event), delta, directions=ways, tolerance=5e-10)
        assert_tight(accounting.epsilon(event, delta, neighbours), exact)


@pytest.mark.parametrize("steps", [1, 7, 1000])
@pytest.mark.parametrize("noise", [2.0, 40.0])
def test_unsampled_gaussians_against_the_closed_form(steps, noise):
    for delta in (1e-12, 1e-5):
        exact = oracles.gaussian_epsilon(delta, noise / math.sqrt(steps))
        assert_tight(accounting.epsilon(GaussianEvent(noise, steps), delta), exact)
        assert_tight(accounting.epsilon(TrainingEvent(1.0, steps, noise), delta), exact)
        exact = oracles.gaussian_epsilon(delta, noise / 2 / math.sqrt(steps))
        assert_tight(accounting.epsilon(GaussianEvent(noise, steps), delta, "replace_one"), exact)


@pytest.mark.parametrize("scale", [1.0, 5.0, 90.0])
def test_one_unsampled_laplace_against_the_closed_form(scale):
    for event in (LaplaceEvent(scale), TrainingEvent(1.0, 1, None, scale, "laplace")):
        for delta in (1e-12, 1e-6, 1e-4, 1e-3):
            epsilon = 1 / scale + 2 * math.log1p(-delta)
            assert oracles.laplace_delta(epsilon, scale) == pytest.approx(delta, rel=1e-3)
            assert_tight(accounting.epsilon(event, delta), epsilon)
        for fraction in (0.1, 0.5, 0.9):
            exact = oracles.laplace_delta(fraction / scale, scale)
            assert exact * (1 - 1e-9) <= accounting.delta(event, fraction / scale) <= exact * (1 + 1e-3)


@pytest.mark.parametrize(
    ("event", "delta", "exact"),
    [
        (LaplaceEvent(20.0), 0.01, 1 / 20 + 2 * math.log1p(-0.01)),
        (LaplaceEvent(1.0), 0.2, 1 + 2 * math.log1p(-0.2)),
        (GaussianEvent(20.0), 0.015, None),
        (TrainingEvent(0.001, 1, 0.5, 0.5), 0.0005835193793675404, 0.01),
        (TrainingEvent(0.001, 1, 0.5, 0.5, "laplace"), 0.0004787909426308231, 0.01),
    ],
)
def test_tight_where_delta_is_a_good_part_of_its_value_at_zero(event, delta, exact):
    if exact is None:
        exact = oracles.gaussian_epsilon(delta, event.noise)
    if isinstance(event, TrainingEvent):
        law = event.histogram
        assert oracles.plane_delta(exact, 0.001, 0.5, 0.5, law, "remove") == pytest.approx(delta, rel=1e-9)
    assert exact >= 0.0099
    assert_tight(accounting.epsilon(event, delta), exact)


@pytest.mark.parametrize(
    ("event", "half"),
    [
        (LaplaceEvent(4.0, 3), LaplaceEvent(2.0, 3)),
        (TrainingEvent(1.0, 5, 6.0, 4.0, "laplace"), TrainingEvent(1.0, 5, 3.0, 2.0, "laplace")),
    ],
)
def test_unsampled_replacement_is_a_shift_of_two(event, half):
    found = accounting.epsilon(event, 1e-5, "replace_one")
    assert found == pytest.approx(accounting.epsilon(half, 1e-5), rel=1e-3)


@pytest.mark.parametrize(
    ("step", "delta", "width"),
    [
        (Step(3, 0.2, None, 0.7), 1e-3, 2e-5),
        (Step(100, 0.05, None, 1.0), 1e-5, 2e-5),
        (Step(40, 0.5, None, 6.0), 1e-6, 1e-4),
        (Step(8, 1.0, None, 3.0), 1e-5, 1e-4),
    ],
)
def test_laplace_alone_inside_the_rigorous_bracket(step, delta, width):
    bracket = oracles.bracket_epsilon(step, delta, width)
    event = TrainingEvent(step.q, step.count, None, step.scale, "laplace")
    found = accounting.epsilon(event, delta)
    assert bracket.low - BELOW <= found <= ABOVE * bracket.high
    assert bracket.high - bracket.low <= 0.005 * bracket.high


# ---------------------------------------------------------------- lists of different events


MIXED: list[list[Event]] = [
    [TrainingEvent(0.05, 20, 1.0, 1.0, "laplace"), TrainingEvent(0.1, 30, 2.0), GaussianEvent(3.0)],
    [TrainingEvent(0.02, 500, 2.0, 3.0, "laplace"), TrainingEvent(0.01, 2000, 1.5, 4.0), LaplaceEvent(5.0, 2)],
    [TrainingEvent(0.001, 3000, 1.0), TrainingEvent(0.3, 10, 9.0, 9.0, "laplace"), GaussianEvent(4.0, 2)],
    [GaussianEvent(5.0, 3), LaplaceEvent(2.0), TrainingEvent(0.1, 25, None, 3.0, "laplace")],
]


@pytest.mark.parametrize("events", MIXED)
def test_mixed_lists_against_exact_composition(events):
    for delta in (1e-4, 1e-8):
        exact = oracles.exact_epsilon(steps_of(events), delta, tolerance=5e-10)
        assert_tight(accounting.epsilon(events, delta), exact)


def test_mixed_list_inside_the_rigorous_bracket():
    bracket = oracles.bracket_epsilon(steps_of(MIXED[0]), 1e-6, 1e-4)
    found = accounting.epsilon(MIXED[0], 1e-6)
    assert bracket.low - BELOW <= found <= ABOVE * bracket.high


@pytest.mark.parametrize(("outside", "breach"), [(0.5, 0.0), (0.7, 2e-6), (3.0, 1e-7)])
def test_outside_guarantee_composes_with_training(outside, breach):
    events = [TrainingEvent(0.05, 100, 2.0, 3.0, "laplace"), OutsideEvent(outside, breach)]
    found = accounting.epsilon(events, 1e-5)
    step = step_of(events[0])
    at_ours = max(
        oracles.with_outside(lambda e, way=way: oracles.exact_delta(step, e, way), outside, breach)(found)
        for way in ("remove", "add")
    )
    assert at_ours <= 1e-5 * (1 + 1e-8)
    at_less = oracles.with_outside(lambda e: oracles.exact_delta(step, e, "remove"), outside, breach)(found / 1.01)
    assert at_less >= 1e-5


def test_outside_guarantee_alone_is_itself():
    assert accounting.epsilon(OutsideEvent(0.5), 1e-5) == pytest.approx(0.5, rel=0.01)
    assert accounting.epsilon(OutsideEvent(0.5), 1e-5) >= 0.49
    assert accounting.epsilon(OutsideEvent(0.5, 1e-6), 1.001e-6) == pytest.approx(0.5, rel=0.01)
    assert accounting.epsilon(OutsideEvent(0.5, 1e-5), 1e-6) == math.inf
    assert accounting.delta(OutsideEvent(0.5, 1e-5), 0.6) == pytest.approx(1e-5, rel=1e-6)


def test_outside_guarantee_at_exactly_its_own_delta():
    assert accounting.epsilon(OutsideEvent(0.5, 1e-6), 1e-6) == pytest.approx(0.5, rel=0.01)


def test_unprotected_release_has_no_guarantee():
    events = [GaussianEvent(5.0), UnprotectedEvent("raw mean")]
    assert accounting.epsilon(events, 1e-5) == math.inf
    assert accounting.delta(events, 10.0) == 1.0


# ---------------------------------------------------------------- the corners of the promised range


CORNERS = [
    # q, sigma, steps, delta, tilt: hardly anything sampled, hardly any noise, hardly any loss
    (1e-6, 0.2, 1_000_000, 1e-12, None),
    (1e-6, 0.3, 1_000_000, 1e-12, None),
    (1e-4, 0.5, 10_000, 1e-6, None),
    (1e-5, 1.0, 1_000_000, 1e-9, 16.0),
    (0.3, 0.2, 100, 1e-12, None),
    (1.0, 0.2, 50, 1e-12, None),
    (0.9, 1000.0, 1, 1e-12, None),
    (0.9, 300.0, 1_000_000, 1e-5, None),
]


@pytest.mark.parametrize(("q", "sigma", "steps", "delta", "tilt"), CORNERS)
def test_corners_are_tight(q, sigma, steps, delta, tilt):
    step = Step(steps, q, sigma)
    found = accounting.epsilon(TrainingEvent(q, steps, sigma), delta)
    assert found >= oracles.attack_epsilon(step, delta) - BELOW
    # rounding of a million convolutions leaves the oracle six digits here
    exact = oracles.exact_epsilon(step, delta, directions=("remove",), tolerance=1e-6, tilt=tilt)
    assert exact - 1e-5 * exact <= found <= ABOVE * exact


# ---------------------------------------------------------------- other libraries


def native_epsilon(
    event: TrainingEvent, delta: float, neighbours: str = "add_or_remove", interval: float = 1e-4
) -> float:
    """dp-accounting's PLD accountant, with the one or collapsed release written out by hand."""
    step = step_of(event)
    inner = (
        dp_accounting.LaplaceDpEvent(step.scale)
        if step.sigma is None
        else dp_accounting.GaussianDpEvent(float(step.sigma))
    )
    accountant = pld.PLDAccountant(DP_RELATIONS[neighbours], value_discretization_interval=interval)
    accountant.compose(dp_accounting.PoissonSampledDpEvent(event.sampling_rate, inner), event.steps)
    return float(accountant.get_epsilon(delta))


@pytest.mark.parametrize(
    ("q", "sigma", "noise", "steps", "delta"),
    [
        (0.05, 2.0, None, 300, 1e-5),
        (0.05, 2.0, 1.5, 300, 1e-5),
        (0.3, 6.0, 5.0, 40, 1e-8),
        (0.01, 0.8, None, 100, 1e-6),
    ],
)
@pytest.mark.parametrize("neighbours", ["add_or_remove", "replace_one", "zero_out"])
def test_native_subsampled_gaussian(q, sigma, noise, steps, delta, neighbours):
    event = pair(q, sigma, noise, steps, "gaussian")
    assert accounting.epsilon(event, delta, neighbours) == pytest.approx(
        native_epsilon(event, delta, neighbours), rel=1e-3
    )


@pytest.mark.parametrize(
    ("q", "scale", "steps", "delta"),
    [(0.1, 1.0, 1, 1e-3), (0.05, 2.0, 300, 1e-5), (0.3, 5.0, 60, 1e-8), (0.01, 0.5, 100, 1e-6), (1.0, 4.0, 9, 1e-6)],
)
@pytest.mark.parametrize("neighbours", ["add_or_remove", "zero_out"])
def test_native_subsampled_laplace(q, scale, steps, delta, neighbours):
    event = TrainingEvent(q, steps, None, scale, "laplace")
    native = native_epsilon(event, delta, neighbours)
    found = accounting.epsilon(event, delta, neighbours)
    assert 0.998 * native <= found <= ABOVE * native


@pytest.mark.parametrize(
    ("q", "sigma", "noise", "steps", "delta"),
    [(0.02, 4.0, 2.0, 1000, 1e-5), (0.2, 20.0, 15.0, 200, 1e-5), (0.0016, 1.0, 3.0, 12_000, 1e-6)],
)
def test_opacus_privacy_random_variables(q, sigma, noise, steps, delta):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus.accountants import PRVAccountant

        accountant = PRVAccountant()
        accountant.history = [(1 / math.hypot(1 / sigma, 1 / noise), q, steps)]
        slack = 0.01
        law = accountant._get_dprv(eps_error=slack, delta_error=delta / 1000)
        low, estimate, high = law.compute_epsilon(delta, delta / 1000, slack)
    found = accounting.epsilon(pair(q, sigma, noise, steps, "gaussian"), delta)
    assert low <= found <= high
    assert found == pytest.approx(estimate, rel=2e-3)


# ---------------------------------------------------------------- the second accountant


@pytest.mark.parametrize(
    "event",
    [
        TrainingEvent(0.02, 1000, 4.0, 2.0),
        TrainingEvent(0.2, 200, 20.0),
        TrainingEvent(1.0, 10, 9.0, 7.0),
        GaussianEvent(3.0, 4),
        LaplaceEvent(9.0, 20),
    ],
)
def test_second_accountant_is_an_upper_limit(event):
    first, second = accounting.epsilon(event, 1e-5), accounting.rdp_epsilon([event], 1e-5)
    exact_or_ours = min(first, ABOVE * first)
    assert exact_or_ours <= second * ABOVE
    assert second <= 1.6 * first


def test_second_accountant_is_an_upper_limit_for_compositions():
    events = [
        TrainingEvent(0.02, 1000, 4, 2),
        GaussianEvent(9, 3),
        LaplaceEvent(30),
        TrainingEvent(1, 2, 20, 40, "laplace"),
    ]
    events.append(SelectionEvent((GaussianEvent(20),), 5.0))
    first, second = accounting.epsilon(events, 1e-5), accounting.rdp_epsilon(events, 1e-5)
    assert first <= second <= 1.6 * first
    assert accounting.rdp_epsilon([*events, UnprotectedEvent()], 1e-5) == math.inf


@pytest.mark.parametrize("mean", [10, 100])
def test_second_accountant_knows_selection(mean):
    published = {10: 4.511, 100: 5.629}[mean]
    assert accounting.rdp_epsilon([SelectionEvent((BASE,), mean)], 1e-6) == pytest.approx(published, abs=2e-3)


# ---------------------------------------------------------------- Renyi divergences for filters


@pytest.mark.parametrize(
    "event",
    [
        GaussianEvent(3.0, 2),
        LaplaceEvent(2.0, 3),
        TrainingEvent(0.02, 1000, 4.0, 2.0),
        TrainingEvent(0.001, 10_000, 0.9),
        TrainingEvent(0.3, 50, 4.0),
    ],
    ids=repr,
)
def test_renyi_divergences_agree_with_dp_accounting(event):
    """Equal where the curve is smooth; smaller where tails are counted as delta instead."""
    orders = [2.0, 3.0, 4.0, 8.0, 16.0]
    accountant = rdp.RdpAccountant(orders=orders)
    accountant.compose(accounting.to_dp_event(event))
    ours, missing = accounting.curve(event).renyi(orders, 1e-12)
    assert missing <= 2e-12
    theirs = np.asarray(accountant._rdp)
    assert np.all(ours <= theirs * (1 + 1e-3))
    smooth = theirs < 3.0
    assert np.all(ours[smooth] >= theirs[smooth] * (1 - 1e-6))
    assert smooth.any()


def test_renyi_divergence_of_what_dp_accounting_does_not_know():
    """A sampled Gaussian with a Laplace histogram, by integration over the plane of both outputs."""
    rate, noise, scale, order = 0.1, 2.0, 3.0, 6.0
    x = np.linspace(-14 * noise, 14 * noise, 6001)
    y = np.linspace(-25 * scale, 25 * scale + 1, 6001)
    gaussian = (2 * x - 1) / (2 * noise**2)
    laplace = (np.abs(y) - np.abs(y - 1)) / scale
    px = np.exp(-(x**2) / (2 * noise**2))
    py = np.exp(-np.abs(y) / scale)
    px, py = px / px.sum(), py / py.sum()
    loss = np.log1p(rate * np.expm1(gaussian[:, None] + laplace[None, :]))
    base = px[:, None] * py[None, :]
    removed = math.log(float((base * np.exp(order * loss)).sum())) / (order - 1)
    added = math.log(float((base * np.exp((1 - order) * loss)).sum())) / (order - 1)
    event = TrainingEvent(rate, 1, noise, scale, "laplace")
    (ours,), _ = accounting.curve(event).renyi([order], 1e-13)
    assert ours == pytest.approx(max(removed, added), rel=2e-3)
    assert ours >= max(removed, added) * (1 - 1e-4)
