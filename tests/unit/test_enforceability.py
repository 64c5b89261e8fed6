"""Doubts about constraints on few rows, from released numbers only."""

import math

import numpy as np
import pytest

from ratewise.domain import Domain
from ratewise.enforceability import Doubt, doubts, standard_errors
from ratewise.families import demographic_parity, precision
from ratewise.multipliers import Multipliers
from ratewise.partition import compile_constraints
from ratewise.plan import Plan
from ratewise.predicates import group
from ratewise.rates import rate

DOMAIN = Domain(classes=(0, 1), columns={"g": ("a", "b", "c")})
PARITY = compile_constraints(demographic_parity("g", max_gap=0.1), DOMAIN)


def plan(noise=5.0, steps=100, sampling_rate=0.5, n_rows=10_000):
    return Plan(
        n_rows=n_rows,
        sampling_rate=sampling_rate,
        steps=steps,
        clip=1.0,
        gradient_noise=1.0,
        histogram_noise=noise,
    )


def judged(sizes, compiled=PARITY, **changes):
    """Return doubts after a run whose histograms said that groups have these sizes, half of each positive."""
    made = plan(**changes)
    multipliers = Multipliers(compiled, made)
    counts = np.outer(sizes, [0.5, 0.5]) * made.sampling_rate
    for _ in range(4):
        multipliers.update(counts)
    return doubts(compiled, multipliers, made)


class TestStandardErrors:
    def test_one_rate_by_hand(self):
        """Noise on a count over the batch's rows, and the chance of who is among all rows."""
        compiled = compile_constraints(rate(1, where=group(g="a")) <= 0.3, DOMAIN)
        counts = np.zeros((compiled.n_cells, 2))
        own = compiled.cells([0], {"g": ["a"]})[0]
        counts[own] = [60.0, 40.0]
        counts[1 - own] = [500.0, 500.0]
        (found,) = standard_errors(compiled, counts, counts.sum(axis=1), noise=6.0, rate=0.25, steps=9)
        assert found == pytest.approx(math.hypot(2.0 / 100, 0.5 / math.sqrt(400)))

    def test_against_simulated_noise(self):
        """The part that comes from noise is the spread of values read off noisy histograms."""
        rng = np.random.default_rng(0)
        counts = np.array([[700.0, 300.0], [500.0, 500.0], [60.0, 140.0]])
        noisy = counts + rng.normal(scale=8.0, size=(4000, 3, 2))
        values = np.array([PARITY.values(table, counts.sum(axis=1)) for table in noisy])
        found = standard_errors(PARITY, counts, counts.sum(axis=1), 8.0, rate=1e-9, steps=1)
        np.testing.assert_allclose(found, values.std(axis=0), rtol=0.06)

    def test_falls_with_steps_and_rows_and_rises_with_noise(self):
        counts = np.array([[700.0, 300.0], [500.0, 500.0], [60.0, 140.0]])

        def errors(scale=1.0, noise=8.0, steps=10):
            table = counts * scale
            return standard_errors(PARITY, table, table.sum(axis=1), noise, 0.5, steps)

        base = errors()
        assert np.all(errors(steps=40) < base)
        assert np.all(errors(scale=4) < base)
        assert np.all(errors(noise=16.0) > base)
        assert np.all(errors(noise=0.0) > 0)  # the chance of who is among the rows remains

    def test_groups_that_noise_makes_negative_do_not_break_it(self):
        counts = np.array([[700.0, 300.0], [500.0, 500.0], [-3.0, -2.0]])
        assert np.all(np.isfinite(standard_errors(PARITY, counts, counts.sum(axis=1), 8.0, 0.5, 10)))


class TestDoubts:
    def test_large_groups_are_beyond_doubt(self):
        assert judged([5000, 5000, 5000]) == ()

    def test_the_small_group_is_named_and_no_other(self):
        found = judged([5000, 5000, 20])
        assert found
        assert all("g=c" in doubt.constraint for doubt in found)
        assert {doubt.constraint for doubt in found} <= set(PARITY.names)
        assert all(doubt.rows == pytest.approx(20) for doubt in found)

    def test_more_noise_more_doubt(self):
        sizes = [5000, 5000, 3000]
        assert judged(sizes) == ()
        assert len(judged(sizes, noise=3000.0)) == len(PARITY)

    def test_uncertainty_is_what_was_too_large(self):
        for doubt in judged([5000, 5000, 20]):
            assert 2 * doubt.uncertainty > 0.02

    def test_without_noise_size_alone_counts(self):
        made = Plan(n_rows=1000, sampling_rate=1.0, steps=10, clip=None, gradient_noise=None, private=False)
        multipliers = Multipliers(PARITY, made)
        multipliers.update(np.array([[250.0, 250.0], [245.0, 245.0], [5.0, 5.0]]))
        assert any("g=c" in doubt.constraint for doubt in doubts(PARITY, multipliers, made))

    def test_in_words(self):
        assert str(Doubt("P(1) <= 0.2", 12.3, 0.0512)) == "P(1) <= 0.2 (about 12 rows, known to +-0.1)"
        assert "about 0 rows" in str(Doubt("x", -3.0, 0.1))
        assert str(Doubt("P(1) <= 0.2", 900.0, 0.01, 0.123)) == (
            "P(1) <= 0.2 (exceeded by about 0.12 at the end of training)"
        )

    def test_at_least_085_is_about_as_much_as_at_most_015(self):
        """A share of at least 0.85 among 600 rows is as uncertain as one of at most 0.15."""
        sizes = {}
        for name, limit in {
            "most": rate(1, where=group(g="a")) <= 0.15,
            "least": rate(0, where=group(g="a")) >= 0.85,
        }.items():
            compiled = compile_constraints(limit, DOMAIN)
            own = compiled.cells([0], {"g": ["a"]})[0]
            made = plan(noise=120.0)
            multipliers = Multipliers(compiled, made)
            counts = np.full((compiled.n_cells, 2), 1500.0)
            counts[own] = [270.0, 30.0]
            multipliers.update(counts)
            sizes[name] = [doubt.uncertainty for doubt in doubts(compiled, multipliers, made)]
        assert len(sizes["most"]) == 1
        assert sizes["least"] == pytest.approx(sizes["most"])


class TestMissed:
    """A limit on many rows is named if the released rates of the last quarter of the steps exceed it."""

    def end_at(self, before, at_the_end, limit=0.2, steps=40):
        compiled = compile_constraints(rate(1, where=group(g="a")) <= limit, DOMAIN)
        own = compiled.cells([0], {"g": ["a"]})[0]
        made = plan(steps=steps)
        multipliers = Multipliers(compiled, made)
        for step in range(steps):
            share = at_the_end if step >= 3 * steps // 4 else before
            counts = np.full((compiled.n_cells, 2), 1000.0)
            counts[own] = [2000.0 * (1 - share), 2000.0 * share]
            multipliers.update(counts)
        return doubts(compiled, multipliers, made)

    def test_by_how_much(self):
        (doubt,) = self.end_at(0.1, 0.3)
        assert doubt.excess == pytest.approx(0.1)

    def test_what_came_before_does_not_count(self):
        assert self.end_at(0.4, 0.19) == ()

    def test_a_hair_does_not_count(self):
        assert self.end_at(0.1, 0.21) == ()

    def test_ratios_are_left_out(self):
        """Precisions of noisy iterates say little about the precision of their mean."""
        made = plan(steps=4)
        compiled = compile_constraints(precision(0.9, positive=1), DOMAIN)
        multipliers = Multipliers(compiled, made)
        for _ in range(4):
            multipliers.update(np.full((compiled.n_cells, 2), 1000.0))  # a precision of one half
        assert doubts(compiled, multipliers, made) == ()
