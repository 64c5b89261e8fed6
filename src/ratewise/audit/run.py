"""Audits: play games, let an adversary guess, bound epsilon."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ratewise import _validate
from ratewise.accounting import TrainingEvent
from ratewise.accounting import epsilon as account
from ratewise.audit.bounds import gaussian_bound, many_runs_bound, one_run_bound
from ratewise.audit.games import LinearSubject, Sight, Subject, checked_plan
from ratewise.audit.report import AuditResult
from ratewise.exceptions import InvalidInput, UnsupportedCombination
from ratewise.plan import Plan
from ratewise.randomness import RandomStreams

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

RELEASES = ("together", "gradient", "histogram")
ATTACKS = ("likelihood", "difference")

_TUNING = 0.3  # share of the games that serve to choose a threshold


def audit_step(plan: Plan, *, games: int = 20_000, **options: Any) -> AuditResult:
    """Audit a single step of a plan by many games with a worst-case row; `audit_training` has the options."""
    return _many_runs(plan, "step", 1, games, **options)


def audit_training(plan: Plan, *, games: int = 1000, **options: Any) -> AuditResult:
    """Audit all steps of a plan by many trainings with a worst-case row.

    Parameters
    ----------
    plan : Plan
        What is released, with how much noise and how often.
    games : int
        Trainings that are played; three in ten serve to choose when to guess "in" and are not counted.
    releases : "together", "gradient" or "histogram"
        What the adversary sees.
    attack : "likelihood" or "difference"
        The likelihood ratio, which is the best there is if the noise is as claimed; or differences of two
        entries of the histogram, which show noise that entries share.
    delta, confidence : float
        Epsilon is bounded at this delta. An epsilon at a tiny delta shows in one game of 1 / delta only; at a
        delta of 0.01 a few thousand games come close to the truth, and the claim is the same guarantee.
    subject : Subject, optional
        Another engine with rows of its own; the NumPy engine with worst-case rows unless told.
    random_state : int, generator or None

    Returns
    -------
    AuditResult
    """
    return _many_runs(plan, "training", checked_plan(plan).steps, games, **options)


def audit_one_run(
    plan: Plan,
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
    """Audit all steps of a plan by a single training with many canaries, each there by the toss of a coin.

    `guesses` of the canaries (a fifth unless told, fixed beforehand) are called: those with the highest
    scores "in", as many with the lowest "out". Much cheaper than many trainings, and less sharp: expect
    about half of the true epsilon where many trainings would find three quarters.
    """
    _check_choices(releases, attack)
    checked_plan(plan)
    if subject is None:
        subject = LinearSubject(plan, n_canaries=_validate.count(canaries=canaries), n_opponents=0)
    count = subject.n_canaries
    called = max(2, count // 5) if guesses is None else _validate.count(at_least=2, guesses=guesses)
    if called > count:
        raise InvalidInput(f"guesses must be at most the number of canaries, {count}, got {called}")
    streams, coin = _randomness(random_state)
    coins = coin.random((1, count)) < 0.5
    score = _scores(subject, coins, plan.steps, streams, releases, attack)[0]
    order = np.argsort(score, kind="stable")
    half = called // 2
    correct = int(coins[0][order[-half:]].sum() + (~coins[0][order[:half]]).sum())
    return AuditResult(
        lower_bound=one_run_bound(count, 2 * half, correct, delta=delta, confidence=confidence),
        claimed=claimed_epsilon(subject.plan, plan.steps, releases, delta),
        delta=delta,
        confidence=confidence,
        kind="one run",
        releases=releases,
        attack=attack,
        games=count,
        detail=f"{correct} of {2 * half} guesses about {count} canaries were right",
    )


def claimed_epsilon(plan: Plan, steps: int, releases: str, delta: float) -> float:
    """Return what the accountant says of `steps` steps of which only the named releases are seen."""
    event = plan.step_event
    if event is None:
        return np.inf
    seen = TrainingEvent(
        sampling_rate=event.sampling_rate,
        steps=steps,
        gradient_noise=None if releases == "histogram" else event.gradient_noise,
        histogram_noise=None if releases == "gradient" else event.histogram_noise,
        histogram=None if releases == "gradient" else event.histogram,
    )
    return account([seen], delta)


def _many_runs(
    plan: Plan,
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
    _check_choices(releases, attack)
    games = _validate.count(at_least=20, games=games)
    subject = LinearSubject(plan) if subject is None else subject
    streams, coin = _randomness(random_state)
    coins = coin.random((games, subject.n_canaries)) < 0.5
    coins[:, 1:] = False
    score = _scores(subject, coins, steps, streams, releases, attack)[:, 0]
    tuning = int(games * _TUNING)
    threshold = _threshold(score[:tuning], coins[:tuning, 0], delta, confidence)
    inside, hit = coins[tuning:, 0], score[tuning:] > threshold
    hits = {
        "hits_in": int(hit[inside].sum()),
        "games_in": max(1, int(inside.sum())),
        "hits_out": int(hit[~inside].sum()),
        "games_out": max(1, int((~inside).sum())),
    }
    bound = many_runs_bound(**hits, delta=delta, confidence=confidence)
    return AuditResult(
        lower_bound=bound,
        claimed=claimed_epsilon(subject.plan, steps, releases, delta),
        delta=delta,
        confidence=confidence,
        kind=kind,
        releases=releases,
        attack=attack,
        games=games - tuning,
        detail="guessed in: {hits_in} of {games_in} when it was, {hits_out} of {games_out} not".format(
            **hits
        ),
        sharper_bound=_sharper(subject.plan, releases, score, coins[:, 0], delta, confidence),
    )


def _sharper(
    plan: Plan, releases: str, score: Floats, inside: Bools, delta: float, confidence: float
) -> float | None:
    """Return the bound for releases that are Gaussian without sampling, at the point where it is sharpest."""
    laplace = plan.histogram == "laplace" and releases != "gradient"
    if plan.sampling_rate < 1 or laplace or delta == 0:
        return None
    tuning = int(len(score) * _TUNING)
    middle = float(np.median(score[:tuning]))  # between the two laws, where both error rates are known best
    hit, inside = score[tuning:] > middle, inside[tuning:]
    return gaussian_bound(
        int(hit[inside].sum()),
        max(1, int(inside.sum())),
        int(hit[~inside].sum()),
        max(1, int((~inside).sum())),
        delta=delta,
        confidence=confidence,
    )


def _threshold(score: Floats, inside: Bools, delta: float, confidence: float) -> float:
    """Return where guessing "in" begins, by the bound that the games for tuning would give."""
    candidates = np.quantile(score, np.append(np.linspace(0.02, 0.98, 49), 1 - np.logspace(-1.8, -4.5, 40)))
    there, absent = np.sort(score[inside]), np.sort(score[~inside])
    if not len(there) or not len(absent):
        return float(np.median(score))
    best, found = float(np.median(score)), -1.0
    for candidate in np.unique(candidates):
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
    plan = subject.plan
    if releases != "gradient" and plan.histogram_noise is None:
        if releases == "histogram" or attack == "difference":
            raise UnsupportedCombination("the plan releases no histogram; audit releases='gradient'")
        releases = "gradient"
    total = np.zeros(coins.shape)
    for number, sight in enumerate(subject.play(coins, steps, streams)):
        total[number // steps] += _evidence(plan, sight, releases, attack)
    return total


def _evidence(plan: Plan, sight: Sight, releases: str, attack: str) -> Floats:
    """Return the log likelihood ratio of one step: that the canary was there, against that it was not."""
    loss: Floats = np.zeros_like(sight.gradient)
    if attack == "difference":
        if sight.tally is None or sight.beside is None:
            raise UnsupportedCombination("the difference attack needs a histogram")
        # under a shared draw the difference is exact; under the claimed noise it has twice the variance
        return np.asarray(sight.tally - sight.beside, dtype=np.float64)
    if releases != "histogram" and plan.gradient_noise is not None:
        loss = loss + (sight.gradient - 0.5) / plan.gradient_noise**2
    if releases != "gradient" and sight.tally is not None and plan.histogram_noise is not None:
        loss = loss + _count_loss(sight.tally, plan.histogram_noise, plan.histogram)
    rate = plan.sampling_rate
    if rate >= 1:
        return loss
    return np.asarray(np.logaddexp(np.log1p(-rate), np.log(rate) + loss))


def _count_loss(count: Floats, noise: float, law: str | None) -> Floats:
    if law == "laplace":
        return np.asarray((np.abs(count) - np.abs(count - 1.0)) / noise)
    return np.asarray((count - 0.5) / noise**2)


def _check_choices(releases: str, attack: str) -> None:
    _validate.one_of(RELEASES, releases=releases)
    _validate.one_of(ATTACKS, attack=attack)


def _randomness(random_state: Any) -> tuple[RandomStreams, np.random.Generator]:
    streams = RandomStreams.from_seed(random_state)
    return streams, streams.preparation  # no features are prepared: that stream tosses the coins
