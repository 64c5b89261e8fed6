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
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ratewise import _validate
from ratewise.accounting import PrivacyUnit, TrainingEvent
from ratewise.accounting import epsilon as account
from ratewise.audit.bounds import gaussian_bound, many_runs_bound, one_run_bound
from ratewise.constraints.compiled import CompiledConstraints, compile_constraints
from ratewise.constraints.domain import Domain
from ratewise.constraints.families import demographic_parity
from ratewise.data.table import id_units, row_units
from ratewise.exceptions import InvalidInput, InvalidType, UnsupportedCombination
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
# Long enough that a row's gradient is clipped.
_LONG = 1e6
# So small that the model stays where it is: every step then shows the worst case.
STILL = 1e-20
_MOST_ROWS = 20_000  # every canary has a feature of its own


class Sight(NamedTuple):
    """What an adversary makes of one step; one number per canary, in units of the sensitivity."""

    gradient: Floats  # the released sum along the canary's own gradient: about 1 if it took part, 0 if not
    tally: Floats | None = None  # the released entry of the histogram that the canary adds 1 to
    beside: Floats | None = None  # an entry that no row adds to: under independent noise it tells nothing


class Subject(Protocol):
    """A training that can be attacked."""

    @property
    def event(self) -> TrainingEvent:
        """What is played: noise, rate and kinds of release."""
        ...

    @property
    def n_canaries(self) -> int:
        """How many rows may be there or not."""
        ...

    def play(self, coins: Bools, steps: int, streams: RandomStreams) -> Iterator[Sight]:
        """Play ``len(coins)`` games of `steps` steps, canary i being there in game g if ``coins[g, i]``."""
        ...


class WorstRows:
    """Rows that show the most of themselves.

    Every canary has a feature of its own, so large that its gradient is clipped, and a cell of its own.
    Opponents, rows that are always there, pull the other way along the first canary's feature: rules that let
    one row change what others add (an average over the rows that came) are at their worst then. One cell
    stays empty.
    """

    def __init__(self, n_canaries: int, n_opponents: int, *, counted: bool) -> None:
        n_canaries = _validate.count(n_canaries=n_canaries)
        n_rows = n_canaries + _validate.count(at_least=0, n_opponents=n_opponents)
        if n_rows > _MOST_ROWS:
            raise InvalidInput(f"canaries and opponents must be at most {_MOST_ROWS} rows, got {n_rows}")
        self.X = np.zeros((n_rows, n_canaries))
        self.X[np.arange(n_canaries), np.arange(n_canaries)] = _LONG
        self.X[n_canaries:, 0] = -_LONG
        self.labels = np.zeros(n_rows, dtype=np.int64)  # a residual of a half pulls all of them
        self.constraints: CompiledConstraints | None = None
        if counted:
            groups = np.minimum(np.arange(n_rows), n_canaries)
            self.constraints = compile_constraints(
                [demographic_parity("cell", max_gap=1.0)],
                Domain(classes=(0, 1), columns={"cell": list(range(n_canaries + 2))}),
            )
            self.cells = self.constraints.cells(self.labels, {"cell": groups})
            self._own = self.cells[:n_canaries].astype(np.intp)
            self._empty = max(set(range(self.constraints.n_cells)) - set(self.cells.tolist()))

    def sight(self, along: Floats, histogram: Floats | None, positive: Bools) -> Sight:
        """Return what is seen of each canary, given whether the model predicts it positive."""
        if histogram is None:
            return Sight(along)
        predicted = positive.astype(np.intp)
        return Sight(along, histogram[self._own, predicted], histogram[self._empty, predicted])

    def engine(self, rows_per_id: int = 1) -> AdditiveEngine:
        """Return the engine of additive models on these rows.

        Column i is categorical, and canary i is the only row with the first of its values. The opponents
        share that of the first column and have the other label. With several rows per id, every row is a
        person with that many copies of it.
        """
        n_rows, n_canaries = self.X.shape
        grids = tuple(CategoricalGrid(f"x{place}", ("rare", "common")) for place in range(n_canaries))
        common = np.array([0.0, _LONG, 0.0, 0.0])  # released counts: rare values have the largest weight
        basis = build_basis(grids, [common] * n_canaries, 0.0, _LONG, 1.0)
        codes = np.where(self.X != 0.0, 0, 1)
        labels = np.where(np.arange(n_rows) < n_canaries, self.labels, 1)
        cells = None if self.constraints is None else self.cells
        n_cells = 0 if self.constraints is None else self.constraints.n_cells
        problem, units = Problem(labels, cells, 2, n_cells), row_units(n_rows)
        if rows_per_id > 1:
            persons = np.repeat(np.arange(n_rows), rows_per_id)
            codes, problem = codes[persons], problem.take(persons)
            units = id_units(persons, n_rows, rows_per_id, "id")
        return AdditiveEngine(RowCodes(codes, basis.offsets), basis, problem, units)


def make_loop(
    event: TrainingEvent,
    engine: Any,
    n_rows: int,
    dual: DualUpdate | None,
    learning_rate: float,
    most_rows: int | None = None,
) -> Loop:
    """Return the shipped loop with the mechanisms of the shipped plan, without momentum and penalty."""
    most_rows = n_rows if most_rows is None else most_rows
    plan = Plan(
        n_rows, event.sampling_rate, event.steps, {TRAINING: event}, PrivacyUnit(), "zero_out", math.inf, 0.0
    )
    optimizer = GradientDescent(
        np.zeros(engine.n_parameters), learning_rate, event.steps, momentum=0.0, schedule="constant"
    )
    gradient = plan.gradient_mechanism(CLIP, engine.slack(float(most_rows)))
    counts = plan.histogram_mechanism(engine.count_step)
    return Loop(engine, optimizer, dual, gradient, counts, CLIP, plan.expected_units)


def run_loop(loop: Loop, event: TrainingEvent, n_rows: int, streams: RandomStreams) -> Iterator[StepRecord]:
    """Run a loop on samples as the session draws them."""
    samples = keyed_samples(n_rows, event.sampling_rate, event.steps, streams.sampling)
    return loop.run((sample.units(0, n_rows) for sample in samples), streams)


def make_dual(
    constraints: CompiledConstraints, event: TrainingEvent, n_rows: int, **gains: Any
) -> DualUpdate:
    """Return the shipped dual update; without gains the multipliers stay 0."""
    noise = (event.histogram_noise or 1.0) * (math.sqrt(2.0) if event.histogram == "laplace" else 1.0)
    options = {"rate": 0.0, "damping": 0.0, **gains}
    return DualUpdate(
        constraints, total=float(n_rows), sampling_rate=event.sampling_rate, noise=noise, **options
    )


class TableSubject:
    """The engine of additive models with worst-case rows; `n_opponents` None is what makes the worst case.

    With `rows_per_id` above 1, canaries and opponents are persons with that many rows each.
    """

    def __init__(
        self, event: TrainingEvent, n_canaries: int = 1, n_opponents: int | None = 9, rows_per_id: int = 1
    ) -> None:
        self.event = checked_event(event)
        n_opponents = opponents(event) if n_opponents is None else n_opponents
        self._rows = WorstRows(n_canaries, n_opponents, counted=event.histogram_noise is not None)
        self._n_rows, self.n_canaries = self._rows.X.shape
        self._rows_per_id = _validate.count(rows_per_id=rows_per_id)
        self._engine = self._rows.engine(self._rows_per_id)

    def play(self, coins: Bools, steps: int, streams: RandomStreams) -> Iterator[Sight]:
        """Play the games one after another in one long run of the shipped loop."""
        event = self.event.with_steps(len(coins) * steps)
        guarded = _Present(self._engine, np.ones(self._n_rows, dtype=np.bool_))
        compiled = self._rows.constraints
        dual = None if compiled is None else make_dual(compiled, event, self._n_rows)
        loop = make_loop(event, guarded, self._n_rows, dual, STILL, self._engine.units.n_rows)
        rest, shifts = self._shifts(loop)
        canaries = self._engine.bins.take(np.arange(self.n_canaries) * self._rows_per_id)
        basis = self._engine.basis
        guarded.present[: self.n_canaries] = coins[0]
        before = loop.optimizer.parameters.copy()
        for number, record in enumerate(run_loop(loop, event, self._n_rows, streams), start=1):
            after = loop.optimizer.parameters.copy()
            along = shifts @ ((before - after) * (loop.expected_units / STILL) - rest) / CLIP**2
            positive = self._engine.scorer(before).scores(canaries, basis.offsets, basis.groups)[:, 0] > 0
            before = after
            if number % steps == 0 and number < event.steps:
                guarded.present[: self.n_canaries] = coins[number // steps]
            yield self._rows.sight(along, record.histogram, positive)

    def _shifts(self, loop: Loop) -> tuple[Floats, Floats]:
        """Return, of sums without noise: what the opponents add, and what each canary adds to that."""
        rows, theta = np.arange(self._n_rows), loop.optimizer.parameters

        def total(sample: Rows) -> Floats:
            return loop.engine.sums(sample, theta, None, CLIP).gradient  # type: ignore[no-any-return]

        if self.event.sampling_rate >= 1 and self.n_canaries == 1:
            rest = total(rows[1:])
            return rest, (total(rows) - rest)[None, :]
        # who else takes part is left to chance, or does not pull along a canary's feature
        return np.zeros_like(theta), np.array([total(rows[i : i + 1]) for i in range(self.n_canaries)])


def opponents(event: TrainingEvent) -> int:
    """Return how many opponents make the worst case; in a sampled batch they would hide the canary."""
    return 9 if event.sampling_rate >= 1 else 0


def checked_event(event: Any) -> TrainingEvent:
    """Return the event, or raise if it is none."""
    if not isinstance(event, TrainingEvent):
        raise InvalidType(f"event must be a TrainingEvent, got {type(event).__name__}")
    return event


class _Present:
    """An engine that sees the rows that are there, and no others."""

    def __init__(self, engine: AdditiveEngine, present: Bools) -> None:
        self._engine = engine
        self.present = present
        self.n_parameters = engine.n_parameters
        self.count_step = engine.count_step
        self.slack = engine.slack
        self.counts = engine.counts

    def sums(self, sample: Rows, parameters: Floats, weights: Floats | None, clip: float) -> Any:
        """Return the engine's sums over the rows that are there."""
        return self._engine.sums(sample[self.present[sample]], parameters, weights, clip)


# --- what the adversary makes of it -------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class AuditResult:
    """A lower bound on epsilon beside the claim.

    With probability at least `confidence` the true epsilon at `delta` is at least `lower_bound`, and
    `sharper_bound` if the release is Gaussian and not sampled (None where it is not). `claimed` is what the
    accountant says of what was played; `kind` is "step", "training" or "one run"; `games` is the number of
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
    sharper_bound: float | None = None

    @property
    def passed(self) -> bool:
        """Whether no bound is above the claim."""
        return max(self.lower_bound, self.sharper_bound or 0.0) <= self.claimed

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready record."""
        return {**dataclasses.asdict(self), "passed": self.passed}

    def __str__(self) -> str:
        verdict = (
            "PASSED: this attack found no contradiction. That is evidence, not a proof"
            if self.passed
            else "FAILED: what was released shows more than the claim allows"
        )
        sharper = "" if self.sharper_bound is None else f" ({self.sharper_bound:.3f} if it is Gaussian)"
        return (
            f"audit of {self.kind}, {self.releases}, {self.attack} attack: epsilon is at least "
            f"{self.lower_bound:.3f}{sharper} at {self.confidence:.0%} confidence, claimed is "
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
    return _many_runs(event, "training", checked_event(event).steps, games, **options)


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
    scores "in", as many with the lowest "out". Much cheaper than many trainings, and less sharp: expect
    about half of the true epsilon where many trainings would find three quarters.
    """
    checked_event(event)
    if subject is None:
        subject = TableSubject(event, n_canaries=_validate.count(canaries=canaries), n_opponents=0)
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
        claimed=claimed_epsilon(subject.event, event.steps, releases, delta),
        delta=delta,
        confidence=confidence,
        kind="one run",
        releases=releases,
        attack=attack,
        games=count,
        detail=f"{correct} of {2 * half} guesses about {count} canaries were right",
    )


def claimed_epsilon(event: TrainingEvent, steps: int, releases: str, delta: float) -> float:
    """Return what the accountant says of `steps` steps of which only the named releases are seen."""
    seen = TrainingEvent(
        sampling_rate=event.sampling_rate,
        steps=steps,
        gradient_noise=None if releases == "histogram" else event.gradient_noise,
        histogram_noise=None if releases == "gradient" else event.histogram_noise,
        histogram=None if releases == "gradient" else event.histogram,
    )
    return account([seen], delta)


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
    streams = RandomStreams.from_seed(random_state)
    coins = streams.preparation.random((games, subject.n_canaries)) < 0.5
    coins[:, 1:] = False
    score = _scores(subject, coins, steps, streams, releases, attack)[:, 0]
    tuning = int(games * _TUNING)
    threshold = _threshold(score[:tuning], coins[:tuning, 0], delta, confidence)
    hits = _hits(score[tuning:] > threshold, coins[tuning:, 0])
    words = "guessed in: {hits_in} of {games_in} when it was, {hits_out} of {games_out} not"
    return AuditResult(
        lower_bound=many_runs_bound(**hits, delta=delta, confidence=confidence),
        claimed=claimed_epsilon(subject.event, steps, releases, delta),
        delta=delta,
        confidence=confidence,
        kind=kind,
        releases=releases,
        attack=attack,
        games=games - tuning,
        detail=words.format(**hits),
        sharper_bound=_sharper(subject.event, releases, score, coins[:, 0], delta, confidence),
    )


def _sharper(
    event: TrainingEvent, releases: str, score: Floats, inside: Bools, delta: float, confidence: float
) -> float | None:
    """Return the bound for releases that are Gaussian without sampling, at the point where it is sharpest."""
    laplace = event.histogram == "laplace" and releases != "gradient"
    if event.sampling_rate < 1 or laplace or delta == 0:
        return None
    tuning = int(len(score) * _TUNING)
    middle = float(np.median(score[:tuning]))  # between the two laws, where both error rates are known best
    return gaussian_bound(
        **_hits(score[tuning:] > middle, inside[tuning:]), delta=delta, confidence=confidence
    )


def _hits(guessed_in: Bools, inside: Bools) -> dict[str, int]:
    """Return the games with and without the row, and those of each that were guessed "in"."""
    return {
        "hits_in": int(guessed_in[inside].sum()),
        "games_in": max(1, int(inside.sum())),
        "hits_out": int(guessed_in[~inside].sum()),
        "games_out": max(1, int((~inside).sum())),
    }


def _threshold(score: Floats, inside: Bools, delta: float, confidence: float) -> float:
    """Return where guessing "in" begins, by the bound that the games for tuning would give."""
    candidates = np.quantile(score, np.append(np.linspace(0.02, 0.98, 49), 1 - np.logspace(-1.8, -4.5, 40)))
    there, absent = np.sort(score[inside]), np.sort(score[~inside])
    if not len(there) or not len(absent):
        return float(np.median(score))
    between = (absent[-1] + there[0]) / 2.0  # the best choice if there is no noise
    best, found = float(np.median(score)), -1.0
    for candidate in (between, *np.unique(candidates)):
        hits_in = len(there) - int(np.searchsorted(there, candidate, side="right"))
        hits_out = len(absent) - int(np.searchsorted(absent, candidate, side="right"))
        bound = many_runs_bound(
            hits_in, len(there), hits_out, len(absent), delta=delta, confidence=confidence
        )
        if bound > found:
            best, found = float(candidate), bound
    return best


def _scores(
    subject: Subject, coins: Bools, steps: int, streams: RandomStreams, releases: str, attack: str
) -> Floats:
    """Return the adversary's score of each game and canary: the higher, the more likely it was there."""
    event = subject.event
    _validate.one_of(RELEASES, releases=releases)
    _validate.one_of(ATTACKS, attack=attack)
    if releases != "gradient" and event.histogram_noise is None:
        if releases == "histogram" or attack == "difference":
            raise UnsupportedCombination("the event releases no histogram; audit releases='gradient'")
        releases = "gradient"
    total = np.zeros(coins.shape)
    for number, sight in enumerate(subject.play(coins, steps, streams)):
        total[number // steps] += _evidence(event, sight, releases, attack)
    return total


def _evidence(event: TrainingEvent, sight: Sight, releases: str, attack: str) -> Floats:
    """Return the log likelihood ratio of one step: that the canary was there, against that it was not."""
    loss: Floats = np.zeros_like(sight.gradient)
    if attack == "difference":
        if sight.tally is None or sight.beside is None:
            raise UnsupportedCombination("the difference attack needs a histogram")
        # under a shared draw the difference is exact; under the claimed noise it has twice the variance
        return np.asarray(sight.tally - sight.beside, dtype=np.float64)
    if releases != "histogram" and event.gradient_noise is not None:
        loss = loss + (sight.gradient - 0.5) / event.gradient_noise**2
    if releases != "gradient" and sight.tally is not None and event.histogram_noise is not None:
        count, noise = sight.tally, event.histogram_noise
        laplace = (np.abs(count) - np.abs(count - 1.0)) / noise
        loss = loss + (laplace if event.histogram == "laplace" else (count - 0.5) / noise**2)
    rate = event.sampling_rate
    if rate >= 1:
        return loss
    return np.asarray(np.logaddexp(np.log1p(-rate), np.log(rate) + loss))
