"""One frozen description of a training, read by the engine and by the ledger alike.

What is released, with how much noise and how often, is said here once, so that what runs and what is
accounted cannot drift apart. A plan holds public numbers only and never looks at rows.

>>> plan = Plan(n_rows=45_000, sampling_rate=0.01, steps=500, clip=1.0, gradient_noise=2.0)
>>> plan.expected_rows, plan.step_event.steps, plan.gradient_mechanism.standard_deviation
(450.0, 1, 2.0)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ratewise import _validate
from ratewise.accounting.events import Event, GaussianEvent, TrainingEvent
from ratewise.exceptions import InvalidInput, InvalidType, UnsupportedCombination
from ratewise.mechanisms import (
    CENTRING_SLACK,
    GaussianMechanism,
    LaplaceMechanism,
    Mechanism,
    NoNoise,
    RoundedGaussianMechanism,
    RoundedLaplaceMechanism,
    summation_slack,
)
from ratewise.sampling import PoissonSampler

SCHEDULES = ("constant", "cosine", "linear")
AVERAGINGS = ("tail", "polynomial", "none")
NOISES = ("continuous", "discrete")
MOST_STEPS = 10_000_000  # calibration takes seconds there, and minutes beyond
LOOK_NOISE = 1.5  # on the first look at numbers, in units of that on the releases that follow
LOOK_REACH = 1.5  # deviations of the noise on a mean by which numbers may lie further out
_SMALLEST = 1e-100


def schedule_values(shape: str, steps: int, warmup: float = 0.0) -> npt.NDArray[np.float64]:
    """Return one factor per step: a linear rise over the first `warmup` share, then the named shape.

    >>> schedule_values("linear", 4).tolist()
    [1.0, 0.75, 0.5, 0.25]
    >>> schedule_values("constant", 4, warmup=0.5).tolist()
    [0.5, 1.0, 1.0, 1.0]
    """
    at = np.arange(steps) / steps
    if shape == "cosine":
        factors = 0.5 * (1.0 + np.cos(math.pi * at))
    elif shape == "linear":
        factors = 1.0 - at
    else:
        factors = np.ones(steps)
    rise = math.ceil(warmup * steps)
    if rise > 0:
        factors[:rise] *= np.arange(1, rise + 1) / rise
    return factors


def checked_steps(steps: Any) -> int:
    """Return a number of steps that can be planned; more would not end."""
    count = _validate.count(steps=steps)
    if count > MOST_STEPS:
        raise InvalidInput(
            f"steps must be at most {MOST_STEPS}, got {count}; a larger sampling_rate needs fewer"
        )
    return count


@dataclass(frozen=True, kw_only=True)
class DualControl:
    """How the multipliers follow the released rates. All of it is post-processing and costs no privacy.

    With error ``e = Gamma - bound + margin`` an update adds ``rate * e``, with momentum and proportional
    terms, to the multipliers and projects them on ``0 <= lambda <= cap, sum(lambda) <= radius``.

    Parameters
    ----------
    rate : float
        Step of the ascent.
    schedule : "constant", "cosine" or "linear"
        Shape of the rate over the run.
    momentum : float in [0, 1)
        Heavy-ball momentum of the ascent.
    proportional, smoothing : float
        The nu-PI controller of Sohrabi et al. (2024): weight of the change of the error, and the memory
        (nu) of the average it is taken of. ``proportional=0`` is plain ascent.
    penalty : float
        Augmented Lagrangian: the weights use ``lambda + penalty * e``, projected, instead of ``lambda``.
    memory : float in [0, 1)
        Released histograms are averaged over time with this factor before rates are read off them.
    interval : int
        Update once in this many steps, on the mean of their histograms and with a step that many times as
        long: it saves time. Where that is more than a small part of the training, multipliers may swing.
    cap, radius : float or None
        Largest single multiplier, and largest sum of all multipliers.
    margin : float
        Taken off every bound.
    floor_deviations : float
        Denominators are at least this many standard deviations of the noise on a cell's mean size (and at
        least one row).
    clamp : bool
        Put noisy rates back into [0, 1]; means over `patience` steps are of rates as read.
    ratio_floor : float
        Predictions of a class count, as the denominator of a ratio such as precision, for at least this share
        of a batch when weights are made: a class that is hardly ever predicted must not weigh without bound.
    normalise : bool
        Divide the objective by one plus the multipliers' reach, so that loss and limits share one clipping
        norm and strong limits are not cut off by it. It moves no saddle point, penalties on weights apart.
        False is the plain Lagrangian.
    known_totals : bool
        Take out of every histogram what its counts add up to beside the running mean of their cell's rows, so
        that a rate of two classes is read with half of the noise's variance (`ratewise.counts`).
    noise_tolerance : float or None
        Errors count for less the noisier they are, by ``1 / (1 + (deviation / tolerance)^2)``, so that limits
        on a handful of rows do not stir the others. None treats all alike.
    patience : int
        With a tolerance: steps over which the mean of a noisy error is watched. While it is clearly off zero
        the error counts for more and more. For a limit that cannot be enforced, and that noise hides by 0.07
        or more over half of the training, that mean pushes as long as it lasts, by `penalty`, and the
        multiplier stays zero (`ratewise.evidence`). 0 goes by the noise of one update alone.
    """

    rate: float = 0.2
    schedule: str = "constant"
    momentum: float = 0.0
    proportional: float = 0.0
    smoothing: float = 0.0
    penalty: float = 0.0
    memory: float = 0.0
    interval: int = 1
    cap: float | None = None
    radius: float | None = None
    margin: float = 0.0
    floor_deviations: float = 2.0
    clamp: bool = True
    ratio_floor: float = 0.0
    normalise: bool = False
    known_totals: bool = False
    noise_tolerance: float | None = None
    patience: int = 0

    def __post_init__(self) -> None:
        _set(
            self,
            rate=_validate.non_negative(dual_rate=self.rate),
            schedule=_validate.one_of(SCHEDULES, dual_schedule=self.schedule),
            momentum=_below_one(dual_momentum=self.momentum),
            proportional=_validate.non_negative(dual_proportional=self.proportional),
            smoothing=_below_one(dual_smoothing=self.smoothing),
            penalty=_validate.non_negative(dual_penalty=self.penalty),
            memory=_below_one(dual_memory=self.memory),
            interval=_validate.count(dual_interval=self.interval),
            cap=_optional_positive(dual_cap=self.cap),
            radius=_optional_positive(dual_radius=self.radius),
            margin=_validate.real(dual_margin=self.margin),
            floor_deviations=_validate.non_negative(floor_deviations=self.floor_deviations),
            clamp=_flag(clamp=self.clamp),
            ratio_floor=_below_one(ratio_floor=self.ratio_floor),
            normalise=_flag(normalise=self.normalise),
            known_totals=_flag(known_totals=self.known_totals),
            noise_tolerance=_optional_positive(noise_tolerance=self.noise_tolerance),
            patience=_validate.count(at_least=0, dual_patience=self.patience),
        )


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """Noise of the releases that standardise features, four to nine; see `ratewise.standardisation`.

    Parameters
    ----------
    norm_noise : float or None
        On each of two histograms of row norms, in units of their sensitivity.
    moment_noise : float or None
        On the sum of the features, and on that of their squares. None in both means no noise, for a training
        without privacy.
    within : float
        Share of the rows that are meant to be no longer than the bound which the others are shrunk to.
    sized : bool
        Whether sizes of single features are released first (`ratewise.sizes`), with the noise of moments:
        where no bounds of features are declared.
    tails : float or None
        Numbers are cut off so many deviations from their mean (`ratewise.tails`). Both are found in a first
        look at numbers alone, four more releases with 1.5 times the noise. None: no such look, no cut.
        Numbers are declared or, if `sized`, found by the release of sizes.
    bends : float or None
        Numbers enter a second time, bent within a deviation of their mean and at this size
        (`ratewise.bends`). Nothing is released for it. If `sized`, it needs `tails`, which find bounds.
    curves : bool
        Numbers enter a second time, bent between the bounds that were found (`ratewise.curves`). Nothing is
        released for it. It needs `sized` and `tails`: which declared features bend is known before.
    """

    norm_noise: float | None
    moment_noise: float | None
    within: float = 0.98
    sized: bool = False
    tails: float | None = None
    bends: float | None = None
    curves: bool = False

    def __post_init__(self) -> None:
        if (self.norm_noise is None) != (self.moment_noise is None):
            raise UnsupportedCombination(
                f"norm_noise is {self.norm_noise} and moment_noise {self.moment_noise}; give both or neither"
            )
        if self.sized and self.bends is not None and self.tails is None:
            raise UnsupportedCombination(
                f"bends is {self.bends}, and sized is True, for features without declared bounds; bends need "
                "bounds: give tails, which find some"
            )
        if self.curves and (not self.sized or self.tails is None or self.bends is not None):
            raise UnsupportedCombination(
                f"curves is True, sized {self.sized}, tails {self.tails} and bends {self.bends}; curves that "
                "are found need sized=True and tails, and exclude bends"
            )
        _set(
            self,
            norm_noise=_optional_positive(norm_noise=self.norm_noise),
            moment_noise=_optional_positive(moment_noise=self.moment_noise),
            within=_validate.fraction(within=self.within),
            sized=_flag(sized=self.sized),
            tails=_optional_positive(tails=self.tails),
            bends=_optional_positive(bends=self.bends),
            curves=_flag(curves=self.curves),
        )

    @property
    def look(self) -> Preparation | None:
        """The first look at numbers, if tails are cut off: the same releases with more noise."""
        if self.tails is None:
            return None
        plain = replace(self, sized=False, tails=None, bends=None, curves=False)
        if self.norm_noise is None or self.moment_noise is None:
            return plain
        return replace(
            plain, norm_noise=self.norm_noise * LOOK_NOISE, moment_noise=self.moment_noise * LOOK_NOISE
        )

    @property
    def events(self) -> tuple[GaussianEvent, ...]:
        """What the preparation releases, for the ledger."""
        if self.norm_noise is None or self.moment_noise is None:
            return ()
        sizes = (GaussianEvent(self.moment_noise),) if self.sized else ()
        before = () if self.look is None else self.look.events
        return (*sizes, *before, *(GaussianEvent(self.norm_noise), GaussianEvent(self.moment_noise)) * 2)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that a training does, decided before it reads a row.

    Parameters
    ----------
    n_rows, sampling_rate, steps
        Each of `steps` steps keeps each of `n_rows` rows with probability `sampling_rate`. Sums over a batch
        are divided by the constant ``n_rows * sampling_rate``, never by the number of rows that came.
    clip : float or None
        Largest norm of one row's gradient: the sensitivity of the gradient's sum. None (no clipping) needs
        ``private=False``.
    gradient_noise : float or None
        Standard deviation of the noise on the sum of clipped gradients, in units of `clip`.
    histogram, histogram_noise
        Law of the noise on the histogram ("gaussian", "laplace") and its standard deviation or scale. Without
        constraints there is no histogram: both None.
    private : bool
        False trains without any noise. It has to be said in so many words, and excludes noise.
    row_norm : float or None
        Rows longer than this are shrunk to it, in training and in prediction; a rule without data.
    learning_rate, schedule, warmup, momentum, l1, l2
        Gradient descent on the released gradient; the penalties ``l1 * sum(|theta|)`` (of linear models)
        and ``l2/2 * |theta|^2`` spare intercepts and read no rows.
    averaging, averaging_fraction, averaging_power
        The model is the mean of the last ``averaging_fraction`` of the iterates ("tail"), a mean in which
        iterate t weighs about ``t ** averaging_power`` ("polynomial"), or the last iterate ("none").
    temperature : float
        Soft predictions are ``softmax(temperature * logits)``.
    rates : "hard" or "soft"
        Which predictions the histogram counts. The gradient always follows the soft ones.
    dual : DualControl
    block_rows : int or None
        Rows handled at once; None picks a number that fits in cache. It does not change what is computed.
    preparation : Preparation or None
        Releases that standardise the features before the first step; None leaves them as they are.
    noise : "continuous" or "discrete"
        Whether noise is drawn and added in floating point, or exactly and on a grid (`ratewise.mechanisms`),
        which leaves no low bits to read data off. The ledger's numbers are the same: what rounding adds to
        a sensitivity, the noise makes up for.
    """

    n_rows: int
    sampling_rate: float
    steps: int
    clip: float | None
    gradient_noise: float | None
    histogram_noise: float | None = None
    histogram: str | None = "gaussian"
    private: bool = True
    row_norm: float | None = None
    learning_rate: float = 1.0
    schedule: str = "constant"
    warmup: float = 0.0
    momentum: float = 0.9
    l1: float = 0.0
    l2: float = 0.0
    averaging: str = "tail"
    averaging_fraction: float = 0.5
    averaging_power: float = 3.0
    temperature: float = 1.0
    rates: str = "hard"
    dual: DualControl = field(default_factory=DualControl)
    block_rows: int | None = None
    preparation: Preparation | None = None
    noise: str = "continuous"

    def __post_init__(self) -> None:
        _set(
            self,
            noise=_validate.one_of(NOISES, noise=self.noise),
            n_rows=_validate.count(n_rows=self.n_rows),
            sampling_rate=_validate.fraction(sampling_rate=self.sampling_rate),
            steps=checked_steps(self.steps),
            clip=_optional_positive(clip=self.clip),
            gradient_noise=_optional_positive(gradient_noise=self.gradient_noise),
            histogram_noise=_optional_positive(histogram_noise=self.histogram_noise),
            histogram=_validate.one_of(("gaussian", "laplace", None), histogram=self.histogram),
            private=_flag(private=self.private),
            row_norm=_optional_positive(row_norm=self.row_norm),
        )
        self._check_optimisation()
        self._check_privacy()

    def _check_optimisation(self) -> None:
        block = self.block_rows
        _set(
            self,
            learning_rate=_sane(learning_rate=self.learning_rate),
            schedule=_validate.one_of(SCHEDULES, schedule=self.schedule),
            warmup=_below_one(warmup=self.warmup),
            momentum=_below_one(momentum=self.momentum),
            l1=_validate.non_negative(l1=self.l1),
            l2=_validate.non_negative(l2=self.l2),
            averaging=_validate.one_of(AVERAGINGS, averaging=self.averaging),
            averaging_fraction=_validate.fraction(averaging_fraction=self.averaging_fraction),
            averaging_power=_validate.non_negative(averaging_power=self.averaging_power),
            temperature=_validate.positive(temperature=self.temperature),
            rates=_validate.one_of(("hard", "soft"), rates=self.rates),
            block_rows=None if block is None else _validate.count(block_rows=block),
        )
        most = 2.0 * (1.0 + self.momentum)
        if self.learning_rate * self.l2 > most:
            raise InvalidInput(
                f"l2 is {self.l2:g} at a learning rate of {self.learning_rate:g}: each step would overshoot "
                f"zero by more than the one before; their product must be at most {most:g}"
            )
        if not isinstance(self.dual, DualControl):
            raise InvalidType(f"dual must be a DualControl, got {self.dual!r}")

    def _check_privacy(self) -> None:
        if self.histogram_noise is None:
            _set(self, histogram=None)
        elif self.histogram is None:
            raise InvalidInput(
                f"histogram is None but histogram_noise is {self.histogram_noise:g}; "
                "say histogram='gaussian' or 'laplace'"
            )
        if not self.private and (self.gradient_noise is not None or self.histogram_noise is not None):
            raise UnsupportedCombination(
                f"private=False trains without noise, but gradient_noise is {self.gradient_noise} and "
                f"histogram_noise is {self.histogram_noise}; set both to None"
            )
        if self.preparation is not None and self.private != (self.preparation.moment_noise is not None):
            raise UnsupportedCombination(
                f"private is {self.private}, but the preparation has moment_noise "
                f"{self.preparation.moment_noise}; both must be private, or neither"
            )
        if self.private and (self.gradient_noise is None or self.clip is None):
            raise UnsupportedCombination(
                f"a private plan needs clip and gradient_noise, got {self.clip} and {self.gradient_noise}; "
                "private=False trains without a guarantee"
            )

    @property
    def expected_rows(self) -> float:
        """The constant B = n * q that sums over a batch are divided by."""
        return self.n_rows * self.sampling_rate

    @property
    def most_rows(self) -> float:
        """A number of rows that a batch passes with probability below exp(-50)."""
        expected = self.expected_rows
        return min(float(self.n_rows), expected + 10.0 * math.sqrt(expected) + 40.0)

    @property
    def sampler(self) -> PoissonSampler:
        """The sampler of the batches."""
        return PoissonSampler(self.n_rows, self.sampling_rate)

    @property
    def gradient_mechanism(self) -> Mechanism:
        """The release of the sum of clipped gradients, of sensitivity `clip`."""
        if self.gradient_noise is None or self.clip is None:
            return NoNoise()
        if self.noise == "continuous":
            return GaussianMechanism(self.gradient_noise, self.clip)
        return RoundedGaussianMechanism(self.gradient_noise, self.clip, slack=self._slack)

    @property
    def histogram_mechanism(self) -> Mechanism:
        """The release of the histogram, of sensitivity 1 in L1 and in L2."""
        if not self.private:
            return NoNoise()
        if self.histogram_noise is None:
            raise UnsupportedCombination(
                "a private plan without histogram_noise cannot release a histogram; give histogram_noise"
            )
        laplace = self.histogram == "laplace"
        if self.noise == "continuous":
            return (LaplaceMechanism if laplace else GaussianMechanism)(self.histogram_noise, 1.0)
        counted = self.rates == "hard"  # whole numbers are summed and rounded exactly
        rounded = RoundedLaplaceMechanism if laplace else RoundedGaussianMechanism
        return rounded(self.histogram_noise, 1.0, whole=counted, slack=0.0 if counted else self._slack)

    @property
    def _slack(self) -> float:
        """Return by how much rounding errors of a batch's sum, in double precision, can raise a sensitivity.

        A sum of m rows of norm at most C is off by at most ``m * m * 2**-53 * C``, whatever the order; two
        sums by twice that. Rows that are kept apart from their means need a little more.
        """
        return summation_slack(self.most_rows) + CENTRING_SLACK

    @property
    def step_event(self) -> TrainingEvent | None:
        """What one step releases, for the ledger; None if the plan is not private."""
        if not self.private:
            return None
        return TrainingEvent(
            sampling_rate=self.sampling_rate,
            steps=1,
            gradient_noise=self.gradient_noise,
            histogram_noise=self.histogram_noise,
            histogram=self.histogram,
        )

    @property
    def events(self) -> tuple[Event, ...]:
        """Everything that the plan releases, for the ledger; nothing is listed if it is not private."""
        if self.step_event is None:
            return ()
        before = () if self.preparation is None else self.preparation.events
        return (*before, self.step_event.with_steps(self.steps))

    def learning_rates(self) -> npt.NDArray[np.float64]:
        """Return the learning rate of each step."""
        return self.learning_rate * schedule_values(self.schedule, self.steps, self.warmup)

    def dual_rates(self) -> npt.NDArray[np.float64]:
        """Return the step of the multipliers' ascent at each step."""
        return self.dual.rate * schedule_values(self.dual.schedule, self.steps)

    def averaging_weights(self) -> npt.NDArray[np.float64]:
        """Return w with ``average += w[t] * (theta - average)`` after step t; 0 leaves the average alone."""
        weights = np.zeros(self.steps)
        if self.averaging == "polynomial":
            step = np.arange(1, self.steps + 1)
            weights[:] = (self.averaging_power + 1.0) / (step + self.averaging_power)
        else:
            last = self.averaging_fraction if self.averaging == "tail" else 0.0
            length = max(1, math.ceil(last * self.steps))
            weights[self.steps - length :] = 1.0 / np.arange(1, length + 1)
        return weights


def _set(target: Any, **values: Any) -> None:
    for name, value in values.items():
        object.__setattr__(target, name, value)


def _optional_positive(**argument: Any) -> float | None:
    ((_, value),) = argument.items()
    return None if value is None else _sane(hint="None switches it off", **argument)


def _sane(hint: str = "", **argument: Any) -> float:
    """Return a number above zero that no arithmetic of a training can lose or overflow."""
    ((name, value),) = argument.items()
    number = _validate.positive(hint=hint, **argument)
    if not _SMALLEST <= number <= 1 / _SMALLEST:
        raise InvalidInput(f"{name} must lie between {_SMALLEST:g} and {1 / _SMALLEST:g}, got {value!r}")
    return number


def _below_one(**argument: Any) -> float:
    ((name, value),) = argument.items()
    number = _validate.non_negative(**argument)
    if number >= 1:
        raise InvalidInput(f"{name} must be at least 0 and below 1, got {value!r}")
    return number


def _flag(**argument: Any) -> bool:
    ((name, value),) = argument.items()
    if not isinstance(value, (bool, np.bool_)):
        raise InvalidType(f"{name} must be True or False, got {value!r}")
    return bool(value)
