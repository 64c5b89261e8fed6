"""What noisy errors come to count for: little one by one, more when they agree."""

import dataclasses

import numpy as np
import pytest

from ratewise.domain import Domain
from ratewise.evidence import Evidence
from ratewise.multipliers import Multipliers
from ratewise.partition import compile_constraints
from ratewise.plan import DualControl, Plan
from ratewise.predicates import group
from ratewise.rates import rate

DOMAIN = Domain(classes=(0, 1), columns={"g": ("a", "b")})
LIMIT = compile_constraints(rate(1, where=group(g="a")) <= 0.2, DOMAIN)
OWN = LIMIT.cells([0], {"g": ["a"]})[0]


def plan(noise=60.0, **control):
    dual = DualControl(**{"rate": 1.0, "noise_tolerance": 0.05, "patience": 25, **control})
    return Plan(
        n_rows=20_000,
        sampling_rate=0.5,
        steps=200,
        clip=1.0,
        gradient_noise=1.0,
        histogram_noise=noise,
        dual=dual,
    )


def counts(rows, share):
    table = np.full((LIMIT.n_cells, 2), 5000.0)
    table[OWN] = [rows * (1 - share), rows * share]
    return table


def factors(made, share, rows=300.0, steps=100, seed=0):
    """Return how far the error counts at each step, for a group with a true share."""
    rng = np.random.default_rng(seed)
    multipliers, found = Multipliers(LIMIT, made), []
    original = multipliers._evidence.factors

    def spied(*arguments):
        found.append(original(*arguments)[0])
        return np.array([found[-1]])

    multipliers._evidence.factors = spied
    for _ in range(steps):
        noise = rng.normal(scale=made.histogram_noise, size=(LIMIT.n_cells, 2))
        multipliers.update(counts(rows, share) + noise)
    return np.array(found)


def test_one_noisy_error_counts_by_its_noise():
    deviation = 60.0 / 300.0
    assert factors(plan(), 0.9, steps=1) == pytest.approx(1 / (1 + (deviation / 0.05) ** 2), rel=0.3)


def test_errors_that_agree_come_to_be_believed():
    found = factors(plan(), share=0.6)
    assert found[:5].max() < 0.15
    assert found[40:].min() > 0.6


@pytest.mark.parametrize("seed", range(5))
def test_errors_that_do_not_agree_do_not(seed):
    found = factors(plan(), share=0.2, seed=seed)
    assert np.median(found) < 0.12


def test_a_limit_that_is_clearly_kept_goes_by_the_noise():
    """Believed in full, its noise would push a limit that needs no push (`share` is far below the bound)."""
    found = factors(plan(), share=-0.3)
    assert found.max() < 0.15


def test_a_limit_that_was_missed_is_let_go_once_it_is_clearly_kept():
    evidence = Evidence(LIMIT, plan())
    evidence.look(counts(300.0, 0.6), counts(300.0, 0.6), counts(300.0, 0.6).sum(axis=1), 1.0, 1)
    high = [evidence.factors(np.array([0.4]), update, 1)[0] for update in range(60)][-1]
    low = [evidence.factors(np.array([-0.4]), update, 1)[0] for update in range(60, 120)]
    assert high > 0.6
    assert low[-1] == evidence.believed[0]
    assert low[0] > 0.5  # one reading on the other side changes little


def test_what_cannot_be_enforced_is_left_alone():
    """With noise so large that even the mean of all steps says nothing, nothing is believed more."""
    found = factors(plan(noise=400.0), share=0.9)
    assert found[8:].max() < 0.005  # sizes of groups have to settle first


def test_without_patience_it_goes_by_the_noise():
    found = factors(plan(patience=0), share=0.9)
    assert found.max() < 0.15


def test_clear_errors_need_no_evidence():
    """Nothing is gathered where noise is below the tolerance, and a step costs what it did."""
    multipliers = Multipliers(LIMIT, plan(noise=5.0))
    multipliers.update(counts(3000.0, 0.9))
    assert not multipliers._evidence.gathers


def test_crossing_the_limit_takes_belief_back():
    made = plan()
    evidence = Evidence(LIMIT, made)
    evidence.look(counts(300.0, 0.6), counts(300.0, 0.6), counts(300.0, 0.6).sum(axis=1), 1.0, 1)
    for update in range(60):
        high = evidence.factors(np.array([0.4]), update, 1)[0]
    update = 60
    while evidence.level[0] > 0:
        evidence.factors(np.array([-0.4]), update, 1)
        update += 1
    assert evidence.factors(np.array([-0.01]), update, 1)[0] < 0.6 * high


def test_updates_of_several_steps_go_the_same_way():
    single = factors(plan(), share=0.6, steps=100)
    rng = np.random.default_rng(0)
    multipliers = Multipliers(LIMIT, plan(interval=5))
    for _ in range(20):
        multipliers.update(counts(300.0, 0.6) + rng.normal(scale=60.0, size=(5, LIMIT.n_cells, 2)))
    assert multipliers._evidence.boost[0] > 1.5
    assert single[-1] > 0.6


def test_a_resumed_run_goes_on_as_if_never_stopped():
    made = plan()
    rng = np.random.default_rng(1)
    draws = [counts(300.0, 0.6) + rng.normal(scale=60.0, size=(LIMIT.n_cells, 2)) for _ in range(60)]
    whole, first, second = (Multipliers(LIMIT, made) for _ in range(3))
    for draw in draws:
        whole.update(draw)
    for draw in draws[:37]:
        first.update(draw)
    second.restore(first.state())
    for draw in draws[37:]:
        second.update(draw)
    np.testing.assert_array_equal(second.multipliers, whole.multipliers)
    np.testing.assert_array_equal(second.late_values, whole.late_values)


def test_patience_is_a_number_of_steps():
    with pytest.raises(ValueError, match="dual_patience"):
        DualControl(patience=-1)
    assert dataclasses.replace(DualControl(), patience=3).patience == 3
