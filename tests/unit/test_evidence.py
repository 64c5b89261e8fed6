"""What noisy errors come to count for: little one by one, more when they agree."""

import dataclasses

import numpy as np
import pytest

from ratewise.domain import Domain
from ratewise.enforceability import doubts
from ratewise.evidence import Evidence
from ratewise.families import precision
from ratewise.multipliers import Multipliers
from ratewise.partition import compile_constraints
from ratewise.plan import DualControl, Plan
from ratewise.predicates import group
from ratewise.rates import rate

DOMAIN = Domain(classes=(0, 1), columns={"g": ("a", "b")})
FAINT = {"noise": 400.0, "penalty": 3.0}
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
    original = multipliers._evidence.weigh

    def spied(errors, *others):
        counted = original(errors, *others)
        found.append(counted[0] / errors[0])
        return counted

    multipliers._evidence.weigh = spied
    for _ in range(steps):
        noise = rng.normal(scale=made.histogram_noise, size=(LIMIT.n_cells, 2))
        multipliers.update(counts(rows, share) + noise)
    return np.array(found)


def looked(made, rows=300.0, share=0.6, constraints=LIMIT):
    """Return the evidence after a look at exact counts."""
    evidence, exact = Evidence(constraints, made), counts(rows, share)
    evidence.look(exact, exact, exact.sum(axis=1), 1.0, 0, 1)
    return evidence


def weigh(evidence, error, update):
    return evidence.weigh(np.array([error]), np.array([error]), update, 1)


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
    evidence = looked(plan())
    high = [weigh(evidence, 0.4, update)[0] / 0.4 for update in range(60)][-1]
    low = [weigh(evidence, -0.4, update)[0] / -0.4 for update in range(60, 120)]
    assert high > 0.6
    assert low[-1] == pytest.approx(evidence.believed[0])
    assert low[0] > 0.5  # one reading on the other side changes little


def test_without_patience_faint_limits_go_by_the_noise_too():
    found = factors(plan(**FAINT, patience=0), share=0.9)
    assert found[8:].max() < 0.005  # sizes of groups have to settle first
    multipliers = Multipliers(LIMIT, plan(**FAINT, patience=0))
    multipliers.update(counts(300.0, 0.9))
    assert multipliers.multipliers[0] > 0


def test_without_a_penalty_nothing_would_push_faint_limits_but_multipliers():
    multipliers = Multipliers(LIMIT, plan(noise=400.0, penalty=0.0))
    for _ in range(3):
        multipliers.update(counts(300.0, 0.9))
    assert not multipliers.faint.any()
    assert multipliers.multipliers[0] > 0


def test_without_patience_it_goes_by_the_noise():
    found = factors(plan(patience=0), share=0.9)
    assert found.max() < 0.15


def test_clear_errors_need_no_evidence():
    """Nothing is gathered where noise is below the tolerance, and a step costs what it did."""
    multipliers = Multipliers(LIMIT, plan(noise=5.0))
    multipliers.update(counts(3000.0, 0.9))
    assert not multipliers._evidence.gathers


def test_crossing_the_limit_takes_belief_back():
    evidence = looked(plan())
    for update in range(60):
        high = weigh(evidence, 0.4, update)[0] / 0.4
    update = 60
    while evidence.level[0] > 0:
        weigh(evidence, -0.4, update)
        update += 1
    assert weigh(evidence, -0.01, update)[0] / -0.01 < 0.6 * high


def test_a_limit_that_looks_kept_counts_by_its_noise_alone():
    """However strongly it was believed before: else errors of limits that are kept stir with their noise."""
    evidence = looked(plan())
    for update in range(60):
        weigh(evidence, 0.4, update)
    update = 60
    while evidence.level[0] > -1.3 * evidence.deviation[0] / 7:
        weigh(evidence, -0.4, update)
        update += 1
    assert evidence.boost[0] > 2.0
    for level, stirs in ((-1.45, False), (-1.35, True)):  # of the 25 steps' deviation, a seventh of one's
        evidence.level[:] = level * evidence.deviation / 7
        counted = weigh(evidence, float(evidence.level[0]), update)[0] / evidence.level[0]
        assert (counted > 1.5 * evidence.believed[0]) == stirs


def test_updates_of_several_steps_go_the_same_way():
    single = factors(plan(), share=0.6, steps=100)
    rng = np.random.default_rng(0)
    multipliers = Multipliers(LIMIT, plan(interval=5))
    for _ in range(20):
        multipliers.update(counts(300.0, 0.6) + rng.normal(scale=60.0, size=(5, LIMIT.n_cells, 2)))
    assert multipliers._evidence.boost[0] > 1.5
    assert single[-1] > 0.6


class TestFaintLimits:
    """Limits that noise hides over half of the training: at 400 on each count of 300 rows, by 0.27."""

    def test_noise_alone_makes_a_limit_faint(self):
        assert looked(plan(**FAINT)).faint.all()
        assert not looked(plan(noise=60.0, penalty=3.0)).faint.any()  # 0.04
        assert not looked(plan(noise=0.001, penalty=3.0), rows=5.0).faint.any()  # few rows, but seen

    def test_what_can_be_enforced_is_not_faint(self):
        """Noise of 0.08 over half of the steps; with the chance of 600 rows (0.04) it is less than 0.1."""
        evidence = looked(plan(noise=120.0, penalty=3.0))
        assert evidence.able.all()
        assert not evidence.faint.any()

    @pytest.mark.parametrize(("noise", "expected"), [(18.0, False), (24.0, True)])
    def test_the_border(self, noise, expected):
        """120 rows are too few either way (chance of 0.09); noise of 0.06 does not hide them, 0.08 does."""
        evidence = looked(plan(noise=noise, penalty=3.0), rows=60.0)
        assert not evidence.able.any()
        assert evidence.faint.all() == expected

    def test_the_verdict_of_the_first_steps_stays(self):
        """Otherwise a multiplier could go from one step to the next, late in a run."""
        multipliers = Multipliers(LIMIT, plan(**FAINT | {"noise": 24.0}))
        for _ in range(30):
            multipliers.update(counts(60.0, 0.9))
        assert multipliers.faint.all()
        for _ in range(70):
            multipliers.update(counts(3000.0, 0.9))
        assert multipliers.faint.all()

    def test_a_plan_that_does_not_follow_them_has_none(self):
        """Not even if it goes on from the state of one that does."""
        first = Multipliers(LIMIT, plan(**FAINT))
        for _ in range(30):
            first.update(counts(300.0, 0.9))
        for control in ({"penalty": 0.0}, {"patience": 0}, {"noise_tolerance": None}):
            second = Multipliers(LIMIT, plan(**FAINT | control))
            second.restore(first.state())
            second.update(counts(300.0, 0.9))
            assert first.faint.all()
            assert not second.faint.any()
            assert second.multipliers[0] > 0

    def test_they_are_doubted(self):
        """A limit of 0.5 may be uncertain by 0.125 before it is named for that."""
        half = compile_constraints(rate(1, where=group(g="a")) <= 0.5, DOMAIN)
        made = plan(**FAINT | {"noise": 165.0})
        multipliers = Multipliers(half, made)
        for _ in range(30):
            multipliers.update(counts(300.0, 0.5))
        assert multipliers.faint.all()
        assert [doubt.constraint for doubt in doubts(half, multipliers, made)] == list(half.names)

    def test_their_mean_error_counts(self):
        evidence, deviation = looked(plan(**FAINT)), 400.0 / 300.0
        errors = np.random.default_rng(0).normal(0.1, deviation, 60)
        counted = [weigh(evidence, errors[update], update)[0] for update in range(60)]
        level = 0.0
        for update, error in enumerate(errors):
            level += (error - level) / min(25, update + 1)
        by_noise = 1 / (1 + (evidence.deviation[0] / np.sqrt(49.0) / 0.05) ** 2)
        assert counted[-1] == pytest.approx(0.1 * level * by_noise, rel=1e-12)

    def test_their_multipliers_stay_at_zero(self):
        multipliers = Multipliers(LIMIT, plan(**FAINT))
        for _ in range(60):
            multipliers.update(counts(300.0, 0.9))
        assert not multipliers.multipliers.any()
        assert multipliers.table[OWN, 1] > 0  # pushed all the same

    def test_what_a_multiplier_rose_to_before_goes(self):
        """Sizes read off a first histogram can mislead."""
        multipliers = Multipliers(LIMIT, plan(**FAINT))
        multipliers.update(counts(30_000.0, 0.9))
        assert multipliers.multipliers[0] > 0
        for _ in range(60):
            multipliers.update(counts(300.0, 0.9) - counts(500.0, 0.9))
        assert not multipliers.multipliers.any()

    @pytest.mark.parametrize("share", [0.02, 0.5, 0.9])
    def test_their_push_is_right_on_average(self, share):
        """Noisy rates put back into [0, 1] have a mean near one half, whatever the true rate is.

        At the limit itself pushes up and down must cancel: over 200 runs their mean is within 4 of its
        standard errors.
        """
        at_limit = compile_constraints(rate(1, where=group(g="a")) <= share, DOMAIN)
        pushes = []
        for seed in range(200):
            rng, multipliers = np.random.default_rng(seed), Multipliers(at_limit, plan(**FAINT))
            multipliers._sum, multipliers._seen = counts(300.0, share) * 1e9, 1e9  # sizes are known well
            for _ in range(25):
                multipliers.update(counts(300.0, share) + rng.normal(scale=400.0, size=(at_limit.n_cells, 2)))
            assert multipliers.faint.all()
            pushes.append(multipliers._evidence.level[0])
        assert abs(np.mean(pushes)) < 4 * np.std(pushes) / np.sqrt(200)


def test_ratios_stay_between_zero_and_one():
    """Their denominators are as noisy as their numerators: unbounded, one reading could outweigh all."""
    ratio = compile_constraints(precision(0.7, by="g"), DOMAIN)
    multipliers, rng, seen = Multipliers(ratio, plan(noise=100.0, penalty=3.0)), np.random.default_rng(0), []
    original = multipliers._evidence.weigh

    def spied(errors, read, *others):
        seen.append(read)
        return original(errors, read, *others)

    multipliers._evidence.weigh = spied
    for _ in range(50):
        table = np.full((ratio.n_cells, 2), 75.0) + rng.normal(scale=100.0, size=(ratio.n_cells, 2))
        multipliers.update(table)
    assert multipliers.faint.all()
    assert np.min(seen) >= -0.3 - 1e-12
    assert np.max(seen) <= 0.7 + 1e-12


@pytest.mark.parametrize("control", [{}, FAINT])
def test_a_resumed_run_goes_on_as_if_never_stopped(control):
    made = plan(**control)
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
    np.testing.assert_array_equal(second.table, whole.table)
    np.testing.assert_array_equal(second.late_values, whole.late_values)


def test_patience_is_a_number_of_steps():
    with pytest.raises(ValueError, match="dual_patience"):
        DualControl(patience=-1)
    assert dataclasses.replace(DualControl(), patience=3).patience == 3
