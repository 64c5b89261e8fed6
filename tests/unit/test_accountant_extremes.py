"""Corners where the accountant once took minutes, gave up, or raised what is not ours."""

import math

import pytest

from ratewise import accounting
from ratewise.accounting import (
    Budget,
    GaussianEvent,
    LaplaceEvent,
    Ledger,
    OutsideEvent,
    SelectionEvent,
    TrainingEvent,
    curve,
    losses,
)
from ratewise.exceptions import InvalidInput


@pytest.fixture
def sizes(monkeypatch):
    """Return a list that collects the size of every grid and window that is computed."""
    found = []
    compose, discretise = losses._Grids.compose, losses.discretise

    def watched_compose(*arguments):
        law = compose(*arguments)
        found.append(("window", len(law.losses)))
        return law

    def watched_grid(*arguments):
        grid = discretise(*arguments)
        found.append(("grid", len(grid.mass)))
        return grid

    monkeypatch.setattr(losses._Grids, "compose", watched_compose)
    monkeypatch.setattr(losses, "discretise", watched_grid)
    return found


SLOW = [
    [LaplaceEvent(233_804.0, 5), TrainingEvent(0.3936, 10**8, 1e12)],
    [LaplaceEvent(0.1, 10)],
    [OutsideEvent(360.0, 1e-300)],
    [GaussianEvent(2.88e-3, 10**7), LaplaceEvent(1e6)],
]


@pytest.mark.parametrize("events", SLOW, ids=str)
def test_the_work_for_one_epsilon_is_bounded(events, sizes):
    found = accounting.epsilon(events, 1e-12)
    assert 0 <= found < math.inf
    windows = [size for kind, size in sizes if kind == "window"]
    # twice, for either direction of a row's change, at most the first place and the further looks
    assert len(windows) <= 2 * (1 + losses._MOST_LOOKS) + 1
    assert max(windows) <= 1.05 * 2 * losses._MOST_POINTS
    assert max(size for kind, size in sizes if kind == "grid") <= losses._MOST_POINTS + 8


def test_very_little_noise_very_often():
    found = accounting.epsilon(GaussianEvent(2.88e-3, 10**7), 1e-12)
    shift = math.sqrt(1e7) / 2.88e-3
    assert found == pytest.approx(shift**2 / 2 + shift * 7.03, rel=1e-4)


def test_rare_and_large_losses_do_not_hide_the_common_ones():
    """The window was cut off from below, and delta came out sixty times too large."""
    event = TrainingEvent(1e-5, 10**6, 0.5, 11.4)
    found = accounting.delta(event, 0.03555)
    # a sum of mean about 0 and of this deviation; twice the mean positive part of such a normal law
    variance = 1e6 * 1e-10 * math.expm1(event.joint_gaussian_noise**-2)
    assert 0.005 < found < 0.4 * 2 * math.sqrt(variance)


def test_a_release_without_delta_has_a_finite_epsilon_at_every_delta():
    for event, most in [(LaplaceEvent(1.0), 1.0), (LaplaceEvent(0.1, 10), 100.0), (OutsideEvent(2.0), 2.0)]:
        for delta in (1e-30, 1e-100, 1e-200):
            assert 0.9 * most < accounting.epsilon(event, delta) < 1.01 * most


@pytest.mark.parametrize("delta", [5e-324, 1e-201])
def test_a_delta_below_all_measure_is_refused(delta):
    with pytest.raises(InvalidInput, match=r"delta must be at least 1e-200, .* got "):
        accounting.epsilon(GaussianEvent(1.0), delta)
    with pytest.raises(InvalidInput, match="delta must be at least"):
        curve(SelectionEvent((GaussianEvent(9.0),), 10.0)).epsilon(1e-200)


@pytest.mark.parametrize("noise", [1e-5, 5e-324])
@pytest.mark.parametrize(
    ("build", "name"),
    [
        (GaussianEvent, "noise"),
        (LaplaceEvent, "noise"),
        (lambda noise: TrainingEvent(0.1, 1, noise), "gradient_noise"),
        (lambda noise: TrainingEvent(0.1, 1, 1.0, noise), "histogram_noise"),
        (lambda noise: TrainingEvent(0.1, 1, None, noise, "laplace"), "histogram_noise"),
    ],
)
def test_noise_that_protects_nobody_is_refused(noise, build, name):
    with pytest.raises(InvalidInput, match=rf"^{name} must be at least 0.0001, got .*UnprotectedEvent"):
        build(noise)


def test_counts_and_guarantees_beyond_measure_are_refused():
    for build in (lambda: GaussianEvent(1.0, 10**8 + 1), lambda: TrainingEvent(0.1, 10**9, 1.0)):
        with pytest.raises(InvalidInput, match="must be at most 100,000,000"):
            build()
    with pytest.raises(InvalidInput, match=r"epsilon must be at most 1,000,000.*UnprotectedEvent"):
        OutsideEvent(1e308)
    with pytest.raises(InvalidInput, match="mean_trials must be at most"):
        SelectionEvent((GaussianEvent(9.0),), 1e300)


@pytest.mark.parametrize("noise", [1e12, 1e160, 1e308])
def test_more_noise_than_counts_is_counted_as_less(noise):
    least = accounting.epsilon(GaussianEvent(1e12), 1e-5)
    for event in (GaussianEvent(noise), LaplaceEvent(noise), TrainingEvent(0.5, 3, noise, noise, "laplace")):
        for neighbours in ("add_or_remove", "replace_one"):
            if not (isinstance(event, TrainingEvent) and neighbours == "replace_one"):
                assert 0 <= accounting.epsilon(event, 1e-5, neighbours) < 1e-9
    assert accounting.epsilon(GaussianEvent(noise), 1e-5) == least


def test_trials_that_are_hardly_more_than_one():
    event = SelectionEvent((GaussianEvent(9.0),), 1 + 1e-15)
    assert accounting.epsilon(event, 1e-5) >= accounting.epsilon(GaussianEvent(9.0), 1e-5) * (1 - 1e-9)


def test_only_one_exact_look_is_needed_for_the_shift_of_a_selection(monkeypatch):
    """The search for the best shift works on the rough curve; it asked the exact one thirty times."""
    tolerances = []
    near = losses.Composition._near

    def watched(self, epsilon, tolerance, **options):
        tolerances.append(tolerance)
        return near(self, epsilon, tolerance, **options)

    monkeypatch.setattr(losses.Composition, "_near", watched)
    accounting.epsilon(SelectionEvent((TrainingEvent(0.01, 100, 1.0),), 10.0), 1e-6)
    assert 0 < tolerances.count(losses.TOLERANCE) <= 4  # at 0 and at the best, in two directions


@pytest.mark.parametrize("neighbours", ["add_or_remove", "replace_one"])
def test_a_selection_of_candidates_that_show_next_to_nothing_costs_nothing(neighbours):
    """Five trials of total variation 4e-7 each differ by less than delta, whatever epsilon is."""
    event = SelectionEvent((GaussianEvent(1e6),), 5)
    assert accounting.delta(event, 0.0, neighbours) < 1e-5
    assert accounting.epsilon(event, 1e-5, neighbours) == 0.0
    ledger = Ledger(cap=Budget(1e-6, 1e-5), neighbours=neighbours)
    assert ledger.admit(event).statement().epsilon <= ledger.cap.epsilon
