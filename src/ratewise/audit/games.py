"""Audits: games with a worst-case row, an adversary who guesses, and the bound on epsilon that follows.

A `Subject` is a training with rows that may be there or not. Leaving a row out is done where a step takes up
its rows, so that everything after it, and the public number of rows, is what it would be without that row.
Everything else is the shipped code: sampler, engine, mechanisms, loop.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ratewise import _validate
from ratewise.accounting import PrivacyUnit, TrainingEvent
from ratewise.accounting import epsilon as account
from ratewise.audit.bounds import many_runs_bound, one_run_bound
from ratewise.constraints.compiled import CompiledConstraints, compile_constraints
from ratewise.constraints.domain import Domain
from ratewise.constraints.families import demographic_parity
from ratewise.data.table import Units, id_units, row_units
from ratewise.exceptions import InvalidInput, UnsupportedCombination
from ratewise.mechanisms.randomness import RandomStreams
from ratewise.mechanisms.sampling import Rows, keyed_samples
from ratewise.models.additive import AdditiveEngine, Problem
from ratewise.preprocessing.basis import RowCodes, build_basis
from ratewise.preprocessing.grids import CategoricalGrid
from ratewise.training.dual import DualUpdate
from ratewise.training.loop import GradientDescent, Loop, StepRecord
from ratewise.training.plan import TRAINING, Plan

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

RELEASES = ("together", "gradient", "histogram")
ATTACKS = ("likelihood", "difference")

_TUNING = 0.3  # share of the games that serve to choose a threshold
CLIP = 1.0
_LONG = 1e6  # so long that a row's gradient is clipped
STILL = 1e-20  # a learning rate at which the model stays where it is: every step shows the worst case
_MOST_ROWS = 20_000  # every canary has a feature of its own


class Observation(NamedTuple):
    """What an adversary makes of one step; one number per canary, in units of the sensitivity."""

    gradient: Floats  # the released sum along the canary's own gradient: about 1 if it took part, 0 if not
    own_count: Floats | None = None  # the released entry of the histogram that the canary adds 1 to
    empty_count: Floats | None = None  # an entry that no row adds to: under independent noise it tells nothing


class WorstRows:
    """Rows that show the most of themselves.

    Every canary has a feature of its own, so large that its gradient is clipped, and a cell of its own.
    Opponents, rows that are always there, pull the other way along the first canary's feature: rules that let
    one row change what others add (an average over the rows that came) are at their worst then. One cell
    stays empty. With `rows_per_id` above 1, each of them is a person with so many copies of the row.
    """

    def __init__(self, n_canaries: int, n_opponents: int, *, counted: bool, rows_per_id: int = 1) -> None:
        n_canaries = _validate.count(n_canaries=n_canaries)
        n_units = n_canaries + _validate.count(at_least=0, n_opponents=n_opponents)
        if n_units > _MOST_ROWS:
            raise InvalidInput(f"canaries and opponents must be at most {_MOST_ROWS} rows, got {n_units}")
        most = _validate.count(rows_per_id=rows_per_id)
        self.n_units, self.n_canaries = n_units, n_canaries
        self.persons = np.repeat(np.arange(n_units), most)
        self.units: Units = row_units(n_units) if most == 1 else id_units(self.persons, n_units, most, "id")
        X = np.zeros((n_units, n_canaries))
        X[np.arange(n_canaries), np.arange(n_canaries)] = _LONG
        X[n_canaries:, 0] = -_LONG
        self.X = X[self.persons]
        self.labels = np.zeros(len(self.X), dtype=np.int64)  # a residual of a half pulls all of them
        self.constraints: CompiledConstraints | None = None
        self.cells: npt.NDArray[Any] | None = None
        if counted:
            self.constraints = compile_constraints(
                [demographic_parity("cell", max_gap=1.0)],
                Domain(classes=(0, 1), columns={"cell": list(range(n_canaries + 2))}),
            )
            groups = np.minimum(self.persons, n_canaries)
            self.cells = self.constraints.code_cells(self.labels, {"cell": groups})
            self._own = self.cells[: n_canaries * most : most].astype(np.intp)
            self._empty = max(set(range(self.constraints.n_cells)) - set(self.cells.tolist()))

    def observe(self, along: Floats, histogram: Floats | None, positive: Bools) -> Observation:
        """Return what is seen of each canary, given whether the model predicts it positive."""
        if histogram is None:
            return Observation(along)
        predicted = positive.astype(np.intp)
        return Observation(along, histogram[self._own, predicted], histogram[self._empty, predicted])

    def engine(self) -> AdditiveEngine:
        """Return the engine of additive models on these rows.

        Column i is categorical, and canary i is the only unit with the first of its values. The opponents
        share that of the first column and have the other label.
        """
        grids = tuple(CategoricalGrid(f"x{place}", ("rare", "common")) for place in range(self.n_canaries))
        common = np.array([0.0, _LONG, 0.0, 0.0])  # released counts: rare values have the largest weight
        basis = build_basis(grids, [common] * self.n_canaries, 0.0, _LONG, 1.0)
        labels = np.where(self.persons < self.n_canaries, self.labels, 1)
        n_cells = 0 if self.constraints is None else self.constraints.n_cells
        codes = RowCodes(np.where(self.X != 0.0, 0, 1) + basis.offsets[:-1])
        return AdditiveEngine(codes, basis, Problem(labels, self.cells, 2, n_cells), self.units)


def make_loop(event: TrainingEvent, engine: Any, units: Units, dual: Any, learning_rate: float) -> Loop:
    """Return the shipped loop with the mechanisms of the shipped plan, without momentum and penalty."""
    plan = plan_of(event, units.n_units)
    optimizer = GradientDescent(
        np.zeros(engine.n_parameters), learning_rate, event.steps, momentum=0.0, schedule="constant"
    )
    gradient = plan.gradient_mechanism(CLIP, engine.slack(float(units.n_rows)))
    counts = plan.histogram_mechanism(engine.count_step)
    return Loop(engine, optimizer, dual, gradient, counts, CLIP, plan.expected_units)


def plan_of(event: TrainingEvent, n_units: int) -> Plan:
    """Return the plan of a training that is this event and nothing else."""
    rate, steps = event.sampling_rate, event.steps
    return Plan(n_units, rate, steps, {TRAINING: event}, PrivacyUnit(), "zero_out", math.inf, 1e-5)


def run_loop(loop: Loop, event: TrainingEvent, n_units: int, streams: RandomStreams) -> Iterator[StepRecord]:
    """Run a loop on samples as the session draws them."""
    samples = keyed_samples(n_units, event.sampling_rate, event.steps, streams.sampling)
    return loop.run((sample.units(0, n_units) for sample in samples), streams)


def make_dual(rows: WorstRows, event: TrainingEvent, **gains: Any) -> DualUpdate | None:
    """Return the shipped dual update; without gains the multipliers stay 0."""
    if rows.constraints is None:
        return None
    noise = (event.histogram_noise or 1.0) * (math.sqrt(2.0) if event.histogram == "laplace" else 1.0)
    options = {"rate": 0.0, "damping": 0.0, **gains}
    return DualUpdate(
        rows.constraints, total=float(rows.n_units), sampling_rate=event.sampling_rate, noise=noise, **options
    )


class Subject:
    """A training of worst-case rows that can be attacked; subclasses say which engine trains.

    `n_opponents` None is what makes the worst case. With `rows_per_id` above 1, canaries and opponents are persons
    with that many rows each.
    """

    def __init__(
        self, event: TrainingEvent, n_canaries: int = 1, n_opponents: int | None = None, rows_per_id: int = 1
    ) -> None:
        self.event = _validate.instance(TrainingEvent, event=event)
        if n_opponents is None:  # in a sampled batch they would hide the canary
            n_opponents = 9 if event.sampling_rate >= 1 else 0
        counted = event.histogram_noise is not None
        self.rows = WorstRows(n_canaries, n_opponents, counted=counted, rows_per_id=rows_per_id)
        self.n_canaries = self.rows.n_canaries

    def play(self, coins: Bools, steps: int, streams: RandomStreams) -> Iterator[Observation]:
        """Play ``len(coins)`` games of `steps` steps, canary i being there in game g if ``coins[g, i]``.

        The games are played one after another in one long run of the shipped loop.
        """
        present = np.ones(self.rows.n_units, dtype=np.bool_)
        present[: self.n_canaries] = coins[0]
        event = self.event.with_steps(len(coins) * steps)
        for number, seen in enumerate(self.released(event, present, streams), start=1):
            if number % steps == 0 and number < event.steps:
                present[: self.n_canaries] = coins[number // steps]
            yield self.rows.observe(*seen)

    def released(
        self, event: TrainingEvent, present: Bools, streams: RandomStreams
    ) -> Iterator[tuple[Floats, Floats | None, Bools]]:
        """Yield what each step on the present units releases: the sum along each canary's gradient, the histogram.

        The third entry is whether each canary was predicted positive.
        """
        raise NotImplementedError


def only_present(engine: Any, present: Bools) -> None:
    """Let an engine see the units that are present in a step, and no others."""
    whole = engine.sums
    engine.sums = lambda sample, *rest: whole(sample[present[sample]], *rest)


class TableSubject(Subject):
    """The engine of additive models with worst-case rows."""

    def released(
        self, event: TrainingEvent, present: Bools, streams: RandomStreams
    ) -> Iterator[tuple[Floats, Floats | None, Bools]]:
        """Yield what each step of the shipped loop releases."""
        engine, n_units = self.rows.engine(), self.rows.n_units
        everyone, theta = np.arange(n_units), np.zeros(engine.n_parameters)

        def total(sample: Rows) -> Floats:
            return engine.sums(sample, theta, None, CLIP).gradient

        # what each canary adds; who else takes part is left to chance, or does not pull along its feature
        rest, shifts = (np.zeros_like(theta), np.array([total(everyone[i : i + 1]) for i in range(self.n_canaries)]))
        if event.sampling_rate >= 1 and self.n_canaries == 1:
            rest = total(everyone[1:])
            shifts = (total(everyone) - rest)[None, :]
        canaries = engine.bins.take(np.searchsorted(self.rows.persons, np.arange(self.n_canaries)))
        only_present(engine, present)
        loop = make_loop(event, engine, self.rows.units, make_dual(self.rows, event), STILL)
        before = loop.optimizer.parameters.copy()
        for record in run_loop(loop, event, n_units, streams):
            after = loop.optimizer.parameters.copy()
            along = shifts @ ((before - after) * (loop.expected_units / STILL) - rest) / CLIP**2
            positive = engine.scorer(before).scores(canaries)[:, 0] > 0
            before = after
            yield along, record.histogram, positive


# --- what the adversary makes of it -------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class AuditResult:
    """A lower bound on epsilon beside the claim.

    With probability at least `confidence` the true epsilon at `delta` is at least `lower_bound`. `claimed` is what
    the accountant says of what was played; `kind` is "step", "training" or "one run"; `games` is the number of
    games that were counted (one run: canaries).
    """

    lower_bound: float
    claimed: float
    delta: float
    confidence: float
    kind: str
    releases: str
    attack: str
    games: int
    detail: str

    @property
    def passed(self) -> bool:
        """Whether the bound is not above the claim."""
        return self.lower_bound <= self.claimed

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready record."""
        return {**dataclasses.asdict(self), "passed": self.passed}

    def __str__(self) -> str:
        verdict = (
            "PASSED: this attack found no contradiction. That is evidence, not a proof"
            if self.passed
            else "FAILED: what was released shows more than the claim allows"
        )
        return (
            f"audit of {self.kind}, {self.releases}, {self.attack} attack: epsilon is at least "
            f"{self.lower_bound:.3f} at {self.confidence:.0%} confidence, claimed is "
            f"{self.claimed:.3f} at delta {self.delta:g}; {self.detail}. {verdict}."
        )


def audit_step(event: TrainingEvent, *, games: int = 20_000, **options: Any) -> AuditResult:
    """Audit one step of a training by many games with a worst-case row; options as `audit_training`."""
    return _many_runs(event, "step", 1, games, **options)


def audit_training(event: TrainingEvent, *, games: int = 1000, **options: Any) -> AuditResult:
    """Audit all steps of a training by many trainings with a worst-case row.

    Parameters
    ----------
    event : TrainingEvent
        What is released, with how much noise and how often.
    games : int
        Trainings that are played; three in ten serve to choose when to guess "in" and are not counted.
    releases : "together", "gradient" or "histogram"
        What the adversary sees.
    attack : "likelihood" or "difference"
        The likelihood ratio, which is the best there is if the noise is as claimed; or differences of two
        entries of the histogram, which show noise that entries share.
    delta, confidence : float
        Epsilon is bounded at this delta. An epsilon at a tiny delta shows in one game of 1 / delta only.
    subject : Subject, optional
        Another engine with rows of its own; by default that of additive models with worst-case rows.
    random_state : int, generator or None
    """
    event = _validate.instance(TrainingEvent, event=event)
    return _many_runs(event, "training", event.steps, games, **options)


def audit_one_run(
    event: TrainingEvent,
    *,
    canaries: int = 1000,
    guesses: int | None = None,
    releases: str = "together",
    attack: str = "likelihood",
    delta: float = 1e-3,
    confidence: float = 0.95,
    subject: Subject | None = None,
    random_state: Any = None,
) -> AuditResult:
    """Audit all steps of a training by one training with many canaries, each there by a coin toss.

    `guesses` of the canaries (a fifth unless told, fixed beforehand) are called: those with the highest
    scores "in", as many with the lowest "out". Cheaper than many trainings, and less sharp: expect about half of the
    true epsilon. Other options are those of `audit_training`.
    """
    if subject is None:
        subject = TableSubject(event, _validate.count(canaries=canaries), n_opponents=0)
    count = subject.n_canaries
    called = max(2, count // 5) if guesses is None else _validate.count(at_least=2, guesses=guesses)
    if called > count:
        raise InvalidInput(f"guesses must be at most the number of canaries, {count}, got {called}")
    streams = RandomStreams.from_seed(random_state)
    coins = streams.preparation.random((1, count)) < 0.5  # no features are prepared: that stream is free
    score = _scores(subject, coins, event.steps, streams, releases, attack)[0]
    order = np.argsort(score, kind="stable")
    half = called // 2
    correct = int(coins[0][order[-half:]].sum() + (~coins[0][order[:half]]).sum())
    return AuditResult(
        lower_bound=one_run_bound(count, 2 * half, correct, delta=delta, confidence=confidence),
        claimed=_claimed(subject.event, event.steps, releases, delta),
        delta=delta, confidence=confidence, kind="one run", releases=releases, attack=attack, games=count,
        detail=f"{correct} of {2 * half} guesses about {count} canaries were right",
    )  # fmt: skip


def _claimed(event: TrainingEvent, steps: int, releases: str, delta: float) -> float:
    """Return what the accountant says of `steps` steps of which only the named releases are seen."""
    hidden: dict[str, Any] = {
        "together": {},
        "gradient": {"histogram_noise": None, "histogram": None},
        "histogram": {"gradient_noise": None},
    }[releases]
    return account([dataclasses.replace(event, steps=steps, **hidden)], delta)


def _many_runs(
    event: TrainingEvent,
    kind: str,
    steps: int,
    games: int,
    *,
    releases: str = "together",
    attack: str = "likelihood",
    delta: float = 1e-3,
    confidence: float = 0.95,
    subject: Subject | None = None,
    random_state: Any = None,
) -> AuditResult:
    games = _validate.count(at_least=20, games=games)
    subject = TableSubject(event) if subject is None else subject
    event, level = subject.event, dict[str, Any](delta=delta, confidence=confidence)
    streams = RandomStreams.from_seed(random_state)
    coins = streams.preparation.random((games, subject.n_canaries)) < 0.5
    coins[:, 1:] = False
    score, inside = _scores(subject, coins, steps, streams, releases, attack)[:, 0], coins[:, 0]
    tuning = int(games * _TUNING)
    threshold = _threshold(score[:tuning], inside[:tuning], level)
    hits = _hits(score[tuning:] > threshold, inside[tuning:])
    words = "guessed in: {hits_in} of {games_in} when it was, {hits_out} of {games_out} not"
    return AuditResult(
        lower_bound=many_runs_bound(**hits, **level),
        claimed=_claimed(event, steps, releases, delta),
        kind=kind, releases=releases, attack=attack, games=games - tuning, detail=words.format(**hits),
        **level,
    )  # fmt: skip


def _hits(guessed_in: Bools, inside: Bools) -> dict[str, int]:
    """Return the games with and without the row, and those of each that were guessed "in"."""
    return {
        "hits_in": int(guessed_in[inside].sum()),
        "games_in": max(1, int(inside.sum())),
        "hits_out": int(guessed_in[~inside].sum()),
        "games_out": max(1, int((~inside).sum())),
    }


def _threshold(score: Floats, inside: Bools, level: dict[str, Any]) -> float:
    """Return where guessing "in" begins, by the bound that the games for tuning would give."""
    middle = float(np.median(score))
    if inside.all() or not inside.any():
        return middle
    quantiles = np.append(np.linspace(0.02, 0.98, 49), 1 - np.logspace(-1.8, -4.5, 40))
    between = (score[~inside].max() + score[inside].min()) / 2.0  # the best choice if there is no noise
    candidates = [between, *np.unique(np.quantile(score, quantiles))]
    bounds = [many_runs_bound(**_hits(score > candidate, inside), **level) for candidate in candidates]
    return float(candidates[int(np.argmax(bounds))])


def _scores(subject: Subject, coins: Bools, steps: int, streams: RandomStreams, releases: str, attack: str) -> Floats:
    """Return the adversary's score of each game and canary: the higher, the more likely it was there."""
    event = subject.event
    _validate.one_of(RELEASES, releases=releases)
    _validate.one_of(ATTACKS, attack=attack)
    if event.histogram_noise is None and (releases == "histogram" or attack == "difference"):
        raise UnsupportedCombination("the event releases no histogram; audit releases='gradient'")
    total = np.zeros(coins.shape)
    for number, seen in enumerate(subject.play(coins, steps, streams)):
        total[number // steps] += _evidence(event, seen, releases, attack)
    return total


def _evidence(event: TrainingEvent, seen: Observation, releases: str, attack: str) -> Floats:
    """Return the log likelihood ratio of one step: that the canary was there, against that it was not."""
    if attack == "difference" and seen.own_count is not None and seen.empty_count is not None:
        # under a shared draw the difference is exact; under the claimed noise it has twice the variance
        return np.asarray(seen.own_count - seen.empty_count, dtype=np.float64)
    loss: Floats = np.zeros_like(seen.gradient)
    if releases != "histogram" and event.gradient_noise is not None:
        loss = loss + (seen.gradient - 0.5) / event.gradient_noise**2
    if releases != "gradient" and seen.own_count is not None and event.histogram_noise is not None:
        count, noise = seen.own_count, event.histogram_noise
        laplace = (np.abs(count) - np.abs(count - 1.0)) / noise
        loss = loss + (laplace if event.histogram == "laplace" else (count - 0.5) / noise**2)
    rate = event.sampling_rate
    if rate >= 1:
        return loss
    return np.asarray(np.logaddexp(np.log1p(-rate), np.log(rate) + loss))
