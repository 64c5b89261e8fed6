"""Deliberately broken variants, each of which must be caught, by something that passes on the code as it is.

A mutant patches one shipped function. A catcher runs an audit or a check and says whether it raised the
alarm. `docs/threat-model.md` has the same table in words.
"""

import dataclasses

import numpy as np
import pytest

from ratewise import RateConstrainedClassifier, counts, demographic_parity, reading, standardisation, training
from ratewise.accounting import GaussianEvent, Ledger, TrainingEvent
from ratewise.audit import audit_step, check_book, check_noise, check_replay, check_sampling
from ratewise.exceptions import InvalidInput
from ratewise.linear import LinearEngine
from ratewise.mechanisms import GaussianMechanism, RoundedGaussianMechanism
from ratewise.multipliers import Multipliers
from ratewise.plan import DualControl, Plan
from ratewise.randomness import RandomStreams
from ratewise.row_kernels import BinaryKernel
from ratewise.sampling import PoissonSampler

PLAN = Plan(
    n_rows=10,
    sampling_rate=1.0,
    steps=1,
    clip=1.0,
    gradient_noise=1.0,
    histogram_noise=1.5,
    noise="discrete",
)
DELTA = 0.01
GAMES = 3000
LAWS = (GaussianMechanism, RoundedGaussianMechanism)


# ---------------------------------------------------------------------------------- who raises the alarm


def games(releases, attack="likelihood"):
    def caught():
        found = audit_step(
            PLAN, games=GAMES, releases=releases, attack=attack, delta=DELTA, random_state=3, confidence=0.999
        )
        return not found.passed

    return caught


def sampling():
    streams = RandomStreams.from_seed(5)
    return not all(check_sampling(rate, streams=streams).passed for rate in (0.05, 0.5))


def noise():
    return not check_noise(PLAN, steps=1500, streams=RandomStreams.from_seed(6)).passed


def replay():
    return not check_replay(PLAN, streams=RandomStreams.from_seed(7)).passed


def replay_of_defaults():
    as_planned = dataclasses.replace(PLAN, dual=DualControl(known_totals=True, noise_tolerance=0.05))
    return not check_replay(as_planned, streams=RandomStreams.from_seed(7)).passed


def people(n=4000):
    rng = np.random.default_rng(0)
    groups = np.where(np.arange(n) % 2, "a", "b")
    X = rng.normal(size=(n, 3))
    return X, (X[:, 0] > 0).astype(int), {"g": groups}


def fitted(**changes):
    X, y, groups = people()
    options = {
        "epsilon": 4.0,
        "classes": [0, 1],
        "group_values": {"g": ["a", "b", "c"]},
        "steps": 5,
        "standardise": True,
        "random_state": np.random.default_rng(1),
        **changes,
    }
    limit = demographic_parity("g", max_gap=0.5)
    return RateConstrainedClassifier([limit], **options), (X, y, groups)


def partition():
    """Nobody is in group c: a domain that is declared has its cells all the same, and the fit says so."""
    model, (X, y, groups) = fitted()
    try:
        model.fit(X, y, sensitive_features=groups)
    except InvalidInput as refused:
        return "'g=c'" not in str(refused)
    return True


def book(monkeypatch):
    """Watch every release of a fit, and ask the book whether it counts them all."""
    seen: list[float] = []

    def watching(original):
        def release(self, value, rng):
            seen.append(self.noise)
            return original(self, value, rng)

        return release

    for law in LAWS:
        monkeypatch.setattr(law, "release", watching(law.release))
    model, (X, y, groups) = fitted(group_values={"g": ["a", "b"]}, ledger=Ledger())
    model.fit(X, y, sensitive_features=groups)
    plan = model.plan_
    noises = {plan.preparation.norm_noise, plan.preparation.moment_noise}
    assert noises <= set(seen)  # somebody watched
    steps = TrainingEvent(
        plan.sampling_rate, seen.count(plan.gradient_noise), plan.gradient_noise, plan.histogram_noise
    )
    before = [GaussianEvent(noise) for noise in seen if noise in noises]
    return not check_book(model.ledger_, [*before, steps]).passed


# -------------------------------------------------------------------------------------------- the mutants


def break_release(patch, release):
    for law in LAWS:
        patch.setattr(law, "release", release)


def forgotten_noise(patch):
    break_release(patch, lambda self, value, rng: np.array(value, dtype=np.float64))


def halved_noise(patch):
    def release(self, value, rng):
        return value + 0.5 * self.standard_deviation * rng.standard_normal(value.shape)

    break_release(patch, release)


def noise_a_tenth_short(patch):
    def release(self, value, rng):
        return value + 0.9 * self.standard_deviation * rng.standard_normal(value.shape)

    break_release(patch, release)


def one_draw_for_all_cells(patch):
    def release(self, value, rng):
        shape = (len(value), 1, 1) if value.ndim == 3 else value.shape
        return value + self.standard_deviation * rng.standard_normal(shape)

    break_release(patch, release)


def one_draw_for_a_window(patch):
    def release(self, value, rng):
        shape = (1, *value.shape[1:]) if value.ndim == 3 else value.shape
        return value + self.standard_deviation * rng.standard_normal(shape)

    break_release(patch, release)


def the_same_noise_every_step(patch):
    def release(self, value, rng):
        return value + self.standard_deviation * np.random.default_rng(0).standard_normal(value.shape)

    break_release(patch, release)


def forgotten_clip(patch):
    whole = BinaryKernel.sums

    def sums(self, x, factor, limit, *codes):
        return whole(self, x, factor, None, *codes)

    patch.setattr(BinaryKernel, "sums", sums)


def clip_at_twice_the_norm(patch):
    whole = BinaryKernel.sums

    def sums(self, x, factor, limit, *codes):
        return whole(self, x, factor, None if limit is None else 2 * limit, *codes)

    patch.setattr(BinaryKernel, "sums", sums)


def realised_batch_size(patch):
    whole = LinearEngine.sums

    def sums(self, rows, theta, table, loss_weight=1.0):
        gradient, tally = whole(self, rows, theta, table, loss_weight)
        return gradient * (PLAN.n_rows / max(1, len(rows))), tally

    patch.setattr(LinearEngine, "sums", sums)


def rows_counted_twice(patch):
    whole = BinaryKernel.count
    patch.setattr(BinaryKernel, "count", lambda self, tallies: 2 * whole(self, tallies))


def skipped_empty_batches(patch):
    whole = PoissonSampler.batches

    def batches(self, steps, rng):
        done = 0
        while done < steps:
            for rows in whole(self, 1, rng):
                if len(rows):
                    done += 1
                    yield rows

    patch.setattr(PoissonSampler, "batches", batches)


def fixed_size(patch):
    def batches(self, steps, rng):
        for _ in range(steps):
            yield np.sort(rng.choice(self.n_rows, max(1, round(self.expected_rows)), replace=False))

    patch.setattr(PoissonSampler, "batches", batches)


def raw_denominators(patch):
    def add(self, tally, last):
        self._kept.append(tally)
        if len(self._kept) < self._interval and not last:
            return None
        raw = self._histograms(self._kept)
        released = self._release(raw, self._rng)
        self._kept.clear()
        true_sizes = raw.sum(axis=2, keepdims=True)
        noisy_sizes = released.sum(axis=2, keepdims=True)
        self._dual.update(released + (true_sizes - noisy_sizes) / released.shape[2])
        return released

    patch.setattr(training._Window, "add", add)


def with_raw_counts(patch, before=None, after=None):
    """Let something change multipliers by the raw histogram of a step, before or after they move."""
    add = training._Window.add

    def knowing(self, tally, last):
        raw = np.asarray(self._histograms([tally]), dtype=float)[0]
        if before is not None:
            before(self._dual, raw)
        released = add(self, tally, last)
        if after is not None:
            after(self._dual, raw)
        return released

    patch.setattr(training._Window, "add", knowing)


def true_totals(patch):
    """Counts are read beside the true number of rows of a cell, where totals are believed at all."""

    def believe(dual, raw):
        if dual.control.known_totals:
            dual._beside_totals = lambda histogram, _: counts.beside_totals(
                histogram, raw.sum(axis=1), dual._noise, dual._sampling_rate
            )

    with_raw_counts(patch, before=believe)


def ascent_by_raw_counts(patch):
    def hasten(dual, raw):
        dual._rates = np.full(len(dual._rates), 0.5 + 0.01 * raw[0, 0])

    with_raw_counts(patch, before=hasten)


def errors_weighed_by_raw_counts(patch):
    """Only where errors are weighed by their noise at all."""

    def doubt(dual, raw):
        weigh = dual._evidence.weigh
        dual._evidence.weigh = lambda *given: weigh(*given) * (1.0 + 1e-3 * raw[0, 0])

    with_raw_counts(patch, before=doubt)


def table_of_raw_counts(patch):
    def spoil(dual, raw):
        if dual.table is not None:
            dual.table = dual.table * (1.0 + 1e-3 * raw[0, 0])

    with_raw_counts(patch, after=spoil)


def loss_weighed_by_raw_counts(patch):
    with_raw_counts(patch, after=lambda dual, raw: setattr(dual, "loss_weight", 1.0 + 1e-3 * raw[0, 0]))


def partition_from_the_rows(patch):
    whole = reading.read_domain

    def read_domain(*args, **options):
        return whole(*args, **{**options, "group_values": None})[0], []

    patch.setattr(reading, "read_domain", read_domain)


def forgotten_preparation(patch):
    patch.setattr(Ledger, "book", lambda self, event, **words: None)


def forgotten_moments(patch):
    whole = standardisation.standardise

    def standardise(X, scaling, kinds, preparation, rng, book, *rest):
        def first_only(event, purpose):
            if "means" not in purpose:
                book(event, purpose)

        return whole(X, scaling, kinds, preparation, rng, first_only, *rest)

    from ratewise import fitting

    patch.setattr(fitting, "standardise", standardise)


def forgotten_steps(patch):
    from ratewise.accounting.phase import Phase

    whole = Phase.step

    def step(self):
        self.calls = getattr(self, "calls", 0) + 1
        if self.calls == 1:
            whole(self)

    patch.setattr(Phase, "step", step)


MUTANTS = [
    (forgotten_noise, games("gradient")),
    (forgotten_noise, games("histogram")),
    (forgotten_noise, games("together")),
    (halved_noise, games("gradient")),
    (halved_noise, games("histogram")),
    (halved_noise, games("together")),
    (noise_a_tenth_short, noise),
    (one_draw_for_all_cells, games("histogram", "difference")),
    (one_draw_for_all_cells, noise),
    (one_draw_for_a_window, noise),
    (the_same_noise_every_step, noise),
    (forgotten_clip, games("gradient")),
    (clip_at_twice_the_norm, games("gradient")),
    (realised_batch_size, games("gradient")),
    (rows_counted_twice, games("histogram")),
    (skipped_empty_batches, sampling),
    (fixed_size, sampling),
    (raw_denominators, replay),
    (true_totals, replay_of_defaults),
    (ascent_by_raw_counts, replay),
    (errors_weighed_by_raw_counts, replay_of_defaults),
    (table_of_raw_counts, replay),
    (loss_weighed_by_raw_counts, replay),
    (partition_from_the_rows, partition),
    (forgotten_preparation, book),
    (forgotten_moments, book),
    (forgotten_steps, book),
]


def alarm(catcher, monkeypatch):
    return catcher(monkeypatch) if catcher is book else catcher()


CATCHERS = {
    "gradient": games("gradient"),
    "histogram": games("histogram"),
    "together": games("together"),
    "difference": games("histogram", "difference"),
    "noise": noise,
    "sampling": sampling,
    "replay": replay,
    "replay of defaults": replay_of_defaults,
    "partition": partition,
    "book": book,
}


@pytest.mark.parametrize("name", CATCHERS)
def test_no_alarm_for_the_code_as_it_is(name, monkeypatch):
    assert not alarm(CATCHERS[name], monkeypatch)


@pytest.mark.parametrize(
    ("mutant", "catcher"),
    MUTANTS,
    ids=[f"{mutant.__name__}-{number}" for number, (mutant, _) in enumerate(MUTANTS)],
)
def test_every_mutant_is_caught(mutant, catcher, monkeypatch):
    mutant(monkeypatch)
    assert alarm(catcher, monkeypatch)


def test_the_multipliers_are_the_shipped_ones():
    """The replay compares with Multipliers fed by released tables; they must react to what they are fed."""
    from ratewise.audit import WorstRows

    rows = WorstRows(2, 2, counted=True)
    one, other = Multipliers(rows.constraints, PLAN), Multipliers(rows.constraints, PLAN)
    table = np.full((1, *one.shape), 5.0)
    one.update(table)
    other.update(table + np.arange(table.size).reshape(table.shape))
    assert not np.array_equal(one.values, other.values)
