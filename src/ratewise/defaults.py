"""A plan from public facts: what to run when nothing but a budget and constraints is given.

Every choice depends on numbers that are public anyway (rows, features, classes, cells, constraints, budget),
so choosing costs no privacy, and every choice can be overridden. What the rows look like never enters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from ratewise import _validate
from ratewise.accounting import Event, calibrate
from ratewise.exceptions import InvalidInput, InvalidType, UnsupportedCombination
from ratewise.multipliers import Constraints, affordable_interval
from ratewise.plan import LOOK_NOISE, LOOK_REACH, DualControl, Plan, Preparation, checked_steps

AUTO = "auto"

# One set of rules for all data, found on unlike data sets (docs/defaults.md says how they fare).
STEPS = 200  # more gain nothing for sure, even where noise would allow them (docs/steps.md)
RAW_ROW_NORM = 3.0  # of rows as they come
HISTOGRAM_SHARES = (0.1, 0.25)
_TIGHT_SHARE, _TIGHT_CELLS = 0.5, 2  # for limits that are tighter than the noise on their rates
_OPTIMISATION: dict[str, Any] = {"schedule": "linear", "momentum": 0.5}

LEARNING_RATE = 2.0  # of standardised features
_RAW_LEARNING_RATES = (2.5, 10.0)
_LARGEST_BATCH = 65_536
_LARGEST_RATE = 0.5
TAILS = 2.0  # deviations from the mean where numbers are cut off
# Of the distance between bounds: where noise reaches so far, it hides where tails begin. Less of what is
# found is filled with numbers than of what is declared.
_REACH, _REACH_FOUND = 0.3, 0.08
_CALM = 0.004  # noise on a mean of gradients, in units of their bound, up to which curves are let in
_BENDS = 0.05, 0.5  # size of narrower ones where noise is beyond that: from least to most
_FEW_CELLS, _SHARE_PER_CELL = 4, 0.03  # of the histogram, for each cell beyond few
_SHARE_PER_NOISE = 300.0  # share of the histogram for each row in n that one release of everything blurs
_TIGHT = 3.8  # tight limits get the square of so many times what such a release blurs, beside their slack
_GRADIENT_NOISE = 0.075  # noise on the mean gradient that the clipping norm is chosen for
_CLIPS = (0.5, 10.0)
_SHRINKING = (0.07, 0.14)  # noise, for a clipping norm of 1, from which weights shrink, and shrink in full
_USUAL_CLIP = 5.0
_NORM_SHARE, _MOMENT_SHARE = 0.01, 0.02  # of the budget, for each of two releases, at the least
_BLUR, _MORE = 0.2, 2.0  # noise on variances from which on they get more, up to so many times as much
_WITHIN, _BLURS = (0.98, 0.5), (0.2, 0.6)  # rows no longer than their bound, from little noise to much
_NORM_ROWS = 25  # rows per deviation of the noise on lengths: with fewer, some fits would miss them
_MOMENT_ERROR = 4.0  # largest noise on a feature's variance, beside the mean variance, worth standardising at


@dataclass(frozen=True, kw_only=True)
class PublicFacts:
    """What is known of the data without reading a row.

    Parameters
    ----------
    n_rows, n_features, n_classes : int
    constraints : CompiledConstraints or None
        Compiled against public values; None trains without constraints.
    n_kinds : int
        Kinds of features that are measured apart from each other (see `ratewise.standardisation`).
    bounded : bool
        Whether bounds of the features are declared.
    sparse : bool
        Whether features are a sparse matrix.
    n_numbers : int
        Features that are declared to be numbers rather than categories (`ratewise.tails`).
    n_curves : int
        Second columns among the features (`ratewise.curves`).
    """

    n_rows: int
    n_features: int
    n_classes: int
    constraints: Constraints | None = None
    n_kinds: int = 1
    bounded: bool = False
    sparse: bool = False
    n_numbers: int = 0
    n_curves: int = 0

    @property
    def most_numbers(self) -> int:
        """How many features can be numbers: those declared so, or, without bounds, all that are dense."""
        return self.n_numbers if self.bounded or self.sparse or self.n_numbers else self.n_features

    @property
    def n_parameters(self) -> int:
        """Weights and intercepts."""
        return (self.n_features + 1) * (1 if self.n_classes == 2 else self.n_classes)


def sampling_rate_for(n_rows: int) -> float:
    """Return the share of the rows that a step reads: half of them, but no more than 65,536.

    At a given budget the noise on a mean falls as batches grow, until batches hold a large part of the rows;
    past some ten thousand rows a batch, noise no longer limits a linear model and only time is won.

    >>> sampling_rate_for(20_000), sampling_rate_for(10_000_000)
    (0.5, 0.0065536)
    """
    return min(_LARGEST_RATE, _LARGEST_BATCH / n_rows)


def learning_rate_for(n_features: int, preparation: Preparation | None, noise: float) -> float:
    """Return 2 for standardised features; for others a tenth of their number, between 2.5 and 10.

    Standardised features vary by 1 each, however many there are. Rows as they come are shrunk to a fixed
    length, so the more features there are, the less each of them varies, and the longer a step may be before
    it overshoots. Noise that cannot be brought down by clipping shortens steps in proportion, from 0.15 on
    the mean gradient of standardised features and from 0.075 on that of others, whose steps are longer.

    >>> standardised = Preparation(norm_noise=None, moment_noise=None)
    >>> learning_rate_for(60, standardised, 0.075), learning_rate_for(60, None, 0.075)
    (2.0, 6.0)
    >>> learning_rate_for(60, standardised, 0.6)
    0.5
    """
    if preparation is not None:
        return LEARNING_RATE * min(1.0, 2.0 * _GRADIENT_NOISE / max(noise, _GRADIENT_NOISE))
    length = min(max(0.1 * n_features, _RAW_LEARNING_RATES[0]), _RAW_LEARNING_RATES[1])
    return length * _GRADIENT_NOISE / max(noise, _GRADIENT_NOISE)


def clip_for(noise: float, n_parameters: int) -> float:
    """Return the clipping norm at which the noise on a mean gradient has length 0.075, between 0.5 and 10.

    A small norm distorts: rows that matter most, those of small groups with strong limits among them, are
    cut down most. A large one costs noise. So the norm is as large as the noise allows, but no larger than
    5 or the square root of the number of parameters, whichever is more: gradients of standardised rows are
    rarely longer than the latter, but rows of small groups with strong limits count several times.

    Parameters
    ----------
    noise : float
        Expected length of the noise on a mean gradient, for a clipping norm of 1.
    n_parameters : int

    >>> round(clip_for(0.0168, 104), 2), round(clip_for(0.004, 6), 2)
    (4.46, 5.0)
    """
    return min(max(_GRADIENT_NOISE / noise, _CLIPS[0]), _longest_clip(n_parameters))


def l1_for(noise: float, clip: float, n_parameters: int, steps: int) -> float:
    """Return the penalty on the size of weights: what noise alone makes of a weight's mean gradient.

    Over a whole training the noise on one coordinate of the gradient has a mean of about its deviation
    divided by the square root of the steps. A weight that no stronger gradient holds up says nothing and adds
    its noise to every prediction, so it is drawn towards zero. That pays where noise is large and costs a
    little where it is small, by drawing in weights that mean something: below a noise of 0.07 the penalty is
    zero, from 0.14 on it is full.

    Parameters
    ----------
    noise : float
        Expected length of the noise on a mean gradient, for a clipping norm of 1.
    clip : float
    n_parameters, steps : int

    >>> l1_for(0.0168, 4.46, 104, 200), round(l1_for(0.45, 0.5, 20, 200), 5)
    (0.0, 0.00356)
    """
    least, most = _SHRINKING
    share = min(max((noise - least) / (most - least), 0.0), 1.0)
    return share * noise * clip / math.sqrt(n_parameters * steps)


def histogram_share_for(whole: float, n_rows: int, n_cells: int = 2, spare: float = 0.0) -> float:
    """Return the share of the budget that histograms get: a tenth, up to a quarter where rates need more.

    With a tenth, the noise on a count that is followed over a quarter of the steps is about ``6 * whole / n``
    of the rows, whatever the sampling rate and the number of steps. Where that passes 0.002, limits would be
    missed by what nobody can see, and more goes to the histograms, at the cost of noise on gradients. Many
    cells (groups, by label where limits ask for it) are likely to be small ones, whose rates drown first:
    each beyond four adds 0.03, as long as gradients can spare it. Tight limits get more (`tight_share_for`).

    Parameters
    ----------
    whole : float
        Noise multiplier that spends the whole budget in one release.
    n_rows, n_cells : int
    spare : float
        Share that gradients do without, of what is left for training beside other releases.

    >>> histogram_share_for(4.0, 34_000), histogram_share_for(30.0, 34_000)
    (0.1, 0.25)
    >>> histogram_share_for(4.0, 200_000, n_cells=9, spare=0.9)
    0.25
    """
    least, most = HISTOGRAM_SHARES
    wanted = min(least + _SHARE_PER_CELL * max(0, n_cells - _FEW_CELLS), spare)
    return min(max(_SHARE_PER_NOISE * whole / n_rows, wanted, least), most)


def tight_share_for(whole: float, n_rows: int, slack: float, calm: float) -> float:
    """Return the share that histograms need where a limit is tighter than noise lets see: up to half.

    A slack of ``7.6 * whole / n`` is about twice the noise that a quarter of the budget leaves on a count.
    Below that, more goes to the histograms, in proportion to the inverse square of the slack, as far as
    gradients can do without it: half where noise leaves them a calm of 1, a quarter where that is 0.75 or
    less.

    Parameters
    ----------
    whole : float
        Noise multiplier that spends the whole budget in one release.
    n_rows : int
    slack : float
        By how much two rates may differ.
    calm : float
        How many times the noise on a mean of all gradients fits in 0.004 of their bound.

    >>> [round(tight_share_for(4.0, 4_000, slack, 1.0), 2) for slack in (0.02, 0.006, 0.001)]
    [0.04, 0.4, 0.5]
    >>> round(tight_share_for(4.0, 4_000, 0.001, 0.8), 2)
    0.3
    """
    wanted = _TIGHT * whole / (n_rows * slack)
    return min(wanted * wanted, max(min(calm - 0.5, _TIGHT_SHARE), HISTOGRAM_SHARES[1]))


def tight(facts: PublicFacts, whole: float | None) -> bool:
    """Return whether a limit is tighter than noise lets see, and gradients leave room to do something.

    That is where `tight_share_for` gives histograms more than a quarter. There, numbers do not bend
    (`bends_for`): what swings from run to run moves rates. And multipliers keep their pace to the end in
    place of slowing down: what is asked for is as near to nothing as can be, and noise on late gradients
    would undo it unseen.

    >>> from dataclasses import replace
    >>> from ratewise import Domain, demographic_parity
    >>> from ratewise.partition import compile_constraints
    >>> domain = Domain([0, 1], {"sex": ["F", "M"]})
    >>> few = PublicFacts(n_rows=4_400, n_features=19, n_classes=2)
    >>> limits = [demographic_parity("sex", max_gap=gap) for gap in (0.005, 0.01)]
    >>> [tight(replace(few, constraints=compile_constraints(each, domain)), 3.73) for each in limits]
    [True, False]
    """
    slack = _tightest(facts.constraints)
    if whole is None or slack is None:
        return False
    calm = _calmness(facts.n_rows, facts.n_features, facts.n_classes, whole)
    return tight_share_for(whole, facts.n_rows, slack, calm) > HISTOGRAM_SHARES[1]


def spare_for(whole: float, n_rows: int, n_parameters: int, steps: int) -> float:
    """Return about what share of the budget gradients can do without and keep the longest clipping norm.

    With the whole budget, noise on a mean gradient would be about ``whole * sqrt(steps * p) / n`` long, for a
    clipping norm of 1 and whatever the sampling rate; taking a share away makes it longer.

    >>> round(spare_for(3.73, 208_000, 100, 200), 2), spare_for(3.73, 34_000, 100, 200)
    (0.89, 0.0)
    """
    noise = whole * math.sqrt(steps * n_parameters) / n_rows
    return max(0.0, 1.0 - (noise * _longest_clip(n_parameters) / _GRADIENT_NOISE) ** 2)


def row_norm_for(preparation: Preparation | None) -> float | None:
    """Return the longest that a row may be: 3 if features are not standardised, else any length (None).

    Shrinking a row bends what is linear in its features. Where features are standardised, clipping copes with
    long rows; where they are not, it keeps them all to one pace.
    """
    return RAW_ROW_NORM if preparation is None else None


def preparation_for(
    facts: PublicFacts,
    whole: float | None,
    standardise: Any = AUTO,
    tails: Any = AUTO,
    curves: Any = AUTO,
) -> Preparation | None:
    """Return the releases that standardise the features, for 6% to 12% of the budget (or 8% to 16%), or None.

    Left to itself, the rule standardises dense features with declared bounds, whatever the noise: means and
    variances that drown in it are drawn together, and what remains, one size for numbers and one for
    categories, is still better than features as they come. Without bounds, noise on lengths of rows could
    leave no size at all: there it takes as many rows as make the lengths stand out, and noise on a feature's
    variance of at most four times the mean variance. At epsilon 1, delta 1e-5 that is about 930 rows (1,320
    if features are of two kinds, as noise grows with the square root of their number), and 6.5 per feature.

    With 6%, noise on a feature's variance is some share of the mean variance. From a fifth on, more is spent,
    so that it stays a fifth, up to twice as much: features off centre and of the wrong size cost more than
    the noise that this adds to gradients. And since that noise is in proportion to the length which rows
    are shrunk to, this length is the one that 98% of them have at most where noise is small, and half of them
    where it is three fifths.

    Where no bounds are declared, the sizes of single features are released first (`ratewise.sizes`), for
    another 2% to 4%: else one that is much larger than the others sets the length that noise goes by. The
    same release tells which of them are numbers.

    Dense numbers are cut off two deviations from their mean (`ratewise.tails`): the look
    that finds both takes three tenths of what the preparation costs. It is left out where noise on means
    alone reaches over three tenths of the bounds: with two deviations on top hardly anything would be cut.
    Without declared bounds, that takes eight hundredths of the magnitudes found.

    Parameters
    ----------
    facts : PublicFacts
    whole : float or None
        Noise multiplier that spends the whole budget in one release; None without privacy.
    standardise : bool or "auto"
    tails : float, None or "auto"
    curves : "auto" or anything else
        Only "auto" lets numbers bend a little where rows are not enough for curves (`bends_for`).

    >>> few, many = (PublicFacts(n_rows=n, n_features=9, n_classes=2, bounded=True) for n in (300, 9_000))
    >>> preparation_for(many, 4.0)
    Preparation(norm_noise=40.0, moment_noise=28.28..., within=0.98, sized=False, tails=None, bends=None,
        curves=False)
    >>> preparation_for(few, 4.0)
    Preparation(norm_noise=28.28..., moment_noise=20.0, within=0.5, sized=False, tails=None, bends=None,
        curves=False)
    """
    if standardise is False:
        _refuse_tails(tails, "features are not standardised, and nobody knows their means")
        return None
    sized = not facts.bounded
    if whole is None:
        free = _tails_for(facts, tails, 0.0)
        curved = free is not None and curves_found(facts, whole, curves)
        return Preparation(norm_noise=None, moment_noise=None, sized=sized, tails=free, curves=curved)
    norm, moment = whole / math.sqrt(_NORM_SHARE), whole / math.sqrt(_MOMENT_SHARE)
    lost = moment * facts.n_features > _MOMENT_ERROR * facts.n_rows
    drowned = lost or norm * math.sqrt(facts.n_kinds) * _NORM_ROWS > facts.n_rows
    if drowned and not (standardise is True or (facts.bounded and not facts.sparse)):
        return None
    blur = moment * math.sqrt(facts.n_kinds) * facts.n_features / facts.n_rows
    less = math.sqrt(min(max((blur / _BLUR) ** 2, 1.0), _MORE))
    both = less / math.sqrt(1.0 + LOOK_NOISE**-2)  # two looks together cost what one would
    tails = _tails_for(facts, tails, moment / both * LOOK_NOISE)
    less = less if tails is None else both
    bending = facts.bounded or tails is not None  # without bounds, those that tails find
    return Preparation(
        norm_noise=norm / less,
        moment_noise=moment / less,
        within=_within_for(blur),
        sized=sized,
        tails=tails,
        bends=bends_for(facts, whole) if bending and isinstance(curves, str) and curves == AUTO else None,
        curves=bending and curves_found(facts, whole, curves),
    )


def curves_found(facts: PublicFacts, whole: float | None, curves: Any) -> bool:
    """Return whether numbers that are found among features without bounds enter twice, bent between them.

    Only "auto" lets them, and rows have to be enough (`curves_pay`) even if every feature that may be a
    number is one: how many there are is not known when plans are made.

    >>> many = PublicFacts(n_rows=30_000, n_features=20, n_classes=2)
    >>> curves_found(many, 3.73, "auto"), curves_found(many, 37.3, "auto"), curves_found(many, 3.73, False)
    (True, False, False)
    """
    if facts.bounded or facts.sparse or not (isinstance(curves, str) and curves == AUTO):
        return False
    width = facts.n_features + facts.most_numbers
    return whole is None or _calmness(facts.n_rows, width, facts.n_classes, whole) >= 1.0


def bends_for(facts: PublicFacts, whole: float) -> float | None:
    """Return the size of second columns that bend around means, where rows are not enough for curves.

    Where they are (`curves_pay`), curves have the size of other features. Beyond, noise decides: second
    columns begin at half that size and fall in proportion to it, which is about what held-out rows of five
    tables ask for, until less than a twentieth would be left. None there, where limits are tighter than noise
    (`tight`), where curves are among the features and where nothing can bend. Being weighed down, they do not
    count among the features that the clipping norm and the learning rate go by.

    >>> facts = PublicFacts(n_rows=4_000, n_features=20, n_classes=2, bounded=True, n_numbers=20)
    >>> round(bends_for(facts, 3.73), 2), bends_for(facts, 37.3)
    (0.34, None)
    """
    if facts.sparse or not facts.most_numbers or facts.n_curves or tight(facts, whole):
        return None
    calm = _calmness(facts.n_rows, facts.n_features + facts.most_numbers, facts.n_classes, whole)
    size = _BENDS[1] * calm
    return size if calm < 1.0 and size >= _BENDS[0] else None


def _calmness(n_rows: int, n_features: int, n_classes: int, whole: float) -> float:
    """Return how many times the noise on a mean of all gradients fits in what curves are let in at."""
    parameters = n_features * (1 if n_classes == 2 else n_classes)
    return _CALM * n_rows / (whole * math.sqrt(parameters))


def _tails_for(facts: PublicFacts, tails: Any, noise: float) -> float | None:
    """Return where tails are cut off, if they can be; a number that was asked for is refused where not.

    Rows of m numbers between 0 and 1 are about sqrt(m) / 2 long, and noise on means is in proportion to that.
    """
    cuttable = not facts.sparse and facts.most_numbers > 0
    if isinstance(tails, str) and tails == AUTO:
        blurred = noise / facts.n_rows * math.sqrt(facts.most_numbers) / 2
        most = _REACH if facts.bounded else _REACH_FOUND
        return TAILS if cuttable and LOOK_REACH * blurred < most else None
    found = _chosen(tails, None, "tails")
    if found is not None and not cuttable:
        _refuse_tails(found, "features are sparse, or by their declared bounds none of them is a number")
    return None if found is None else _validate.positive(tails=found, hint="None keeps tails")


def _refuse_tails(tails: Any, why: str) -> None:
    if tails is not None and not (isinstance(tails, str) and tails == AUTO):
        raise UnsupportedCombination(f"tails is {tails!r}, but {why}; leave tails out")


def _within_for(blur: float) -> float:
    """Return what share of the rows are to be within their bound, by noise on variances."""
    (most, least), (little, much) = _WITHIN, _BLURS
    return most + (least - most) * min(max((blur - little) / (much - little), 0.0), 1.0)


def plan_for(
    facts: PublicFacts,
    *,
    epsilon: float | None,
    delta: float,
    neighbours: str = "add_or_remove",
    histogram: str = "gaussian",
    histogram_share: float | None = None,
    sampling_rate: float | None = None,
    steps: int | None = None,
    clip: Any = AUTO,
    row_norm: Any = AUTO,
    standardise: Any = AUTO,
    tails: Any = AUTO,
    curves: Any = AUTO,
    dual: DualControl | None = None,
    besides: Iterable[Event] = (),
    **choices: Any,
) -> Plan:
    """Return a plan that spends at most (epsilon, delta), with every open choice made from public facts.

    Parameters
    ----------
    facts : PublicFacts
    epsilon : float or None
        None plans a training without privacy.
    delta : float
    neighbours : str
    histogram, histogram_share, sampling_rate, steps, clip, row_norm, standardise, tails, dual
        None (or "auto" where None has a meaning) leaves the choice to the rules of this module.
    curves
        "auto" lets numbers bend a little where no curves are among the features; else they do not.
    besides : iterable of Event
        Releases outside the plan that the same budget has to cover.
    **choices
        Any other field of `Plan`.
    """
    given = _validate.fraction(sampling_rate=sampling_rate) if sampling_rate is not None else None
    rate = given or sampling_rate_for(facts.n_rows)
    count = STEPS if steps is None else checked_steps(steps)
    whole = None if epsilon is None else _whole(epsilon, delta, neighbours)
    preparation = preparation_for(facts, whole, standardise, tails, curves)
    fields = {**_OPTIMISATION, **{name: value for name, value in choices.items() if value is not None}}
    fields["preparation"] = preparation
    fields["row_norm"] = _chosen(row_norm, row_norm_for(preparation), "row_norm")
    fields["dual"] = _dual_for(facts, rate, count, whole) if dual is None else dual
    shape: dict[str, Any] = {"n_rows": facts.n_rows, "sampling_rate": rate, "steps": count}
    if epsilon is None or whole is None:
        fields = _descent_for(facts, preparation, None, shape, clip) | fields
        return Plan(**shape, gradient_noise=None, private=False, **fields)
    others = (*(() if preparation is None else preparation.events), *besides)
    if histogram_share is None:
        histogram_share = _share_for(facts, count, whole, partial(_whole, epsilon, delta, neighbours, others))
    found = calibrate(
        epsilon,
        delta,
        rate,
        count,
        histogram=None if facts.constraints is None else histogram,
        histogram_share=histogram_share,
        neighbours=neighbours,
        besides=others,
    )
    fields = _descent_for(facts, preparation, found.gradient_noise, shape, clip) | fields
    return Plan(
        **shape,
        gradient_noise=found.gradient_noise,
        histogram_noise=found.histogram_noise,
        histogram=histogram,
        **fields,
    )


def _descent_for(
    facts: PublicFacts,
    preparation: Preparation | None,
    multiplier: float | None,
    shape: dict[str, Any],
    clip: Any,
) -> dict[str, Any]:
    """Return the clipping norm, the learning rate and the penalty, by the noise on a mean gradient."""
    if multiplier is None:
        free = learning_rate_for(facts.n_features, preparation, 0.0)
        return {"clip": _chosen(clip, _CLIPS[1], "clip"), "learning_rate": free}
    parameters = facts.n_parameters
    expected_rows = facts.n_rows * shape["sampling_rate"]
    noise = multiplier * math.sqrt(parameters) / expected_rows  # for a clipping norm of 1
    longest = _validate.positive(clip=_chosen(clip, clip_for(noise, parameters), "clip"))
    return {
        "clip": longest,
        "learning_rate": learning_rate_for(facts.n_features, preparation, noise * longest),
        "l1": l1_for(noise, longest, parameters, shape["steps"]),
    }


def curves_pay(
    n_rows: int, n_features: int, n_classes: int, epsilon: float | None, delta: float, neighbours: str
) -> bool:
    """Return whether rows are enough for features that enter twice (`ratewise.curves`); they all count here.

    More features meet more noise. Where a release that spends the whole budget knows the mean of gradients to
    0.004 of their bound, what curves cost is not to be seen; with fewer rows, straight lines do better unless
    truth is bent by much, and numbers bend a little at most (`bends_for`).

    >>> [curves_pay(n, 40, 2, 1.0, 1e-5, "add_or_remove") for n in (3_000, 30_000)]
    [False, True]
    """
    if epsilon is None:
        return True
    return _calmness(n_rows, n_features, n_classes, _whole(epsilon, delta, neighbours)) >= 1.0


def _whole(epsilon: float, delta: float, neighbours: str, besides: Iterable[Event] = ()) -> float:
    """Return the noise multiplier of one release that spends all of the budget that others leave."""
    found = calibrate(epsilon, delta, 1.0, 1, histogram=None, neighbours=neighbours, besides=besides)
    return found.gradient_noise


def _share_for(facts: PublicFacts, steps: int, whole: float, beside: Callable[[], float]) -> float:
    """Return the share that histograms get of what is left for training.

    `beside` finds the noise multiplier of one release that spends what others leave: that is the share
    ``(whole / beside()) ** 2`` of the budget, as what a release spends goes with the inverse square of its
    noise. Gradients get of it what histograms do not, and that is to be as much as they need.
    """
    cells = 0 if facts.constraints is None else facts.constraints.n_cells
    spare = 0.0
    if cells > _FEW_CELLS:
        needed = 1.0 - spare_for(whole, facts.n_rows, facts.n_parameters, steps)
        with suppress(InvalidInput):  # others leave next to nothing; if too little, calibration will tell
            spare = 1.0 - needed * (beside() / whole) ** 2
    share = histogram_share_for(whole, facts.n_rows, cells, spare)
    slack = _tightest(facts.constraints)
    if slack is None or tight_share_for(whole, facts.n_rows, slack, 1.0) <= share:
        return share
    with suppress(InvalidInput):
        calm = _calmness(facts.n_rows, facts.n_features, facts.n_classes, beside())
        share = max(share, tight_share_for(whole, facts.n_rows, slack, calm))
    return share


def _tightest(constraints: Constraints | None) -> float | None:
    """Return the smallest slack of a limit, in units of a difference of two rates; None if none has any.

    Only bounds above zero are slacks: a floor has one below, and a comparison of two rates zero. None too if
    limits tell more than two cells apart: rates of smaller groups stay hidden whatever is done, and what is
    taken from gradients for them is lost.
    """
    if constraints is None or constraints.n_cells > _TIGHT_CELLS:
        return None
    pairs = zip(constraints.bounds.tolist(), constraints.leverage.tolist(), strict=True)
    return min((2.0 * bound / reach for bound, reach in pairs if bound > 0 and reach > 0), default=None)


def _longest_clip(n_parameters: int) -> float:
    return min(max(math.sqrt(n_parameters), _USUAL_CLIP), _CLIPS[1])


def _dual_for(facts: PublicFacts, rate: float, steps: int, whole: float | None) -> DualControl:
    if facts.constraints is None:
        return DualControl()
    interval = affordable_interval(facts.constraints, facts.n_rows * rate, facts.n_features, steps)
    # more steps are noisier each: multipliers follow the mean of as many as stand for one of the usual number
    share = min(1.0, STEPS / steps)
    # both rates fall to zero together: what still swings at the start comes to rest; the penalty damps it
    return DualControl(
        rate=2.0 * share,
        memory=1.0 - share,
        penalty=3.0,
        schedule="constant" if tight(facts, whole) else "linear",
        interval=interval,
        ratio_floor=0.02,
        normalise=True,
        known_totals=True,
        noise_tolerance=0.05,
        patience=steps // 8,
    )


def _chosen(value: Any, default: Any, name: str) -> Any:
    if isinstance(value, str):
        if value != AUTO:
            raise InvalidType(
                f"{name} must be a number, got {value!r}; None switches it off, {AUTO!r} leaves it open"
            )
        return default
    return value
