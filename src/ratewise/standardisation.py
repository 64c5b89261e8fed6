"""Private means and deviations of the features, so that training meets features of like size.

Gradient descent is at a loss when some features are a hundred times smaller than others, or all of one sign.
Standardising with raw means and deviations leaks; here both are released with noise, in four steps that the
ledger books before they happen. Where no bounds of features are declared, their sizes are released before
(`ratewise.sizes`), which tells numbers from flags, and features are divided by them. Numbers are first looked
at alone, by the same four steps with more noise, and cut off a few deviations from their mean
(`ratewise.tails`). Features come in B kinds, which are public (`kinds_by_bounds`) or, without bounds, what
the sizes tell. Rows are cut in B pieces accordingly, so that small numbers do not drown in the noise that
many categories need.

1. *How long pieces of rows are.* For each kind a histogram of their norms over fixed bins, a quarter of an
   octave each. One row adds 1 to one bin of each kind: sensitivity sqrt(B). Counts that could be noise are
   dropped, and those of pieces of hardly any length unless all are; the bound R of a kind is the edge below
   which a share `within` of the others lies, which the plan fixes before a row is read: all but one in fifty,
   and fewer where noise, which is in proportion to R, is large. Where bounds of features are declared, no row
   is longer than they allow, and if every count could be noise, R is a third of that length: so this works
   with any few rows. Without bounds, counts more than two octaves from the largest are dropped too, and if
   all could be noise, R is the upper end of the two octaves that hold most.
2. *Means.* The sum of the rows, each piece shrunk to norm at most R and divided by R: sensitivity sqrt(B).
3. *How long they are from there.* The released means are taken off, and 1 is done again: sensitivity sqrt(B),
   and bounds R', which are smaller by what all rows have in common (not where half the pieces have hardly any
   length: what is left of a rare flag is the same in all rows that lack it).
4. *Squares.* With every piece, less the means, shrunk to norm at most R', the sum of ``(x / R')^2``. A vector
   of norm 1 has squares of norm at most 1: sensitivity sqrt(B).

Everything after that is post-processing. Means and variances are drawn towards those of their kind as far as
noise explains how they differ; variances are at least twice their noise or their mean, whichever is less.
Noise is in proportion to the length of whole pieces, which is why features need to be of like size before.
Sparse features are not shifted, so nothing is taken off them in 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from ratewise.accounting.events import GaussianEvent
from ratewise.bends import bent, check_bends
from ratewise.curves import Places
from ratewise.exceptions import UnsupportedCombination
from ratewise.features import BLOCK_ROWS, Features
from ratewise.kinds import Kinds, kinds_by_bounds, squared
from ratewise.mechanisms import Mechanism, NoNoise, RoundedGaussianMechanism, summation_slack
from ratewise.plan import LOOK_REACH, Preparation
from ratewise.scaling import Scaling
from ratewise.sizes import find_sizes
from ratewise.tails import between, cut_off, of_numbers

Floats = npt.NDArray[np.float64]
Book = Callable[[GaussianEvent, str], object]

_EDGES = np.exp2(np.arange(-40, 120) / 4)  # norms from a thousandth to a billion
_NEAR = 8
_BLURRED = 4
_NOISE_DEVIATIONS, _FAR_DEVIATIONS, _EVERYBODY_DEVIATIONS = 4.0, 6.0, 2.0
_FLOOR_DEVIATIONS = 2.0
_SMALLEST_SHARE = 0.5
_SMALLEST = 1e-12
_READS = 4.0  # of every row, one for each release


def standardise(
    X: Any,
    scaling: Scaling | None,
    kinds: npt.NDArray[np.intp] | None,
    preparation: Preparation,
    rng: np.random.Generator,
    book: Book,
    numbers: Places | None = None,
) -> Scaling:
    """Return `scaling` with released means and deviations on top (sparse features are not shifted).

    Numbers are looked at first and cut off by what is found, and enter a second time, bent around their
    means, if the preparation says so.

    Parameters
    ----------
    X : array, memory map or CSR matrix
    scaling : Scaling or None
        What is done to the features before; public.
    kinds : array of whole numbers, or None
        One per feature, the same for features of one kind; public. None: by the bounds of `scaling`.
    preparation : Preparation
        Noise of the releases; none for a training without privacy.
    rng : numpy.random.Generator
    book : callable
        Called with each event and its purpose **before** the release.
    numbers : array of whole numbers, or None
        Places of the features whose tails are cut off, and which bend; public. If the preparation releases
        sizes, these tell which of them are; of all features, if None are given.
    """
    if preparation.sized:
        scaling, kinds, numbers = _sized(X, scaling, kinds, preparation, rng, book, numbers)
    else:
        if preparation.bends is not None:
            check_bends(X, scaling, numbers, preparation.bends)
        kinds = kinds_by_bounds(scaling, X.shape[1]) if kinds is None else kinds
        if preparation.look is not None:
            scaling = _without_tails(X, scaling, kinds, preparation, rng, book, numbers)
    features = Features(X, scaling=scaling, intercept=False, reads=_READS)
    bounded = Bounded.of(scaling, features.n_features, declared=not preparation.sized)
    pieces = Kinds(_with_curves(kinds, scaling))
    mean, deviation, _ = _moments(features, pieces, bounded, preparation, rng, book)
    centre = None if features.sparse else mean
    if scaling is None:
        found = Scaling(mean=centre, deviation=deviation)
    else:
        found = scaling.standardised(centre, deviation)
    if preparation.bends is None or numbers is None or not len(numbers):
        return found
    return bent(found, numbers, preparation.bends)


def _sized(
    X: Any,
    scaling: Scaling | None,
    kinds: npt.NDArray[np.intp] | None,
    preparation: Preparation,
    rng: np.random.Generator,
    book: Book,
    possible: Places | None,
) -> tuple[Scaling, npt.NDArray[np.intp], Places]:
    """Return a scaling by released sizes, kinds, and the numbers that were found, cut off by a first look.

    If none are found there is no look, and less is booked than was planned.
    """
    found = find_sizes(Features(X, scaling=scaling, intercept=False), preparation.moment_noise, rng, book)
    if possible is not None and len(possible):
        found = found.among(possible)
    numbers = found.numbers
    if preparation.look is None or not len(numbers):
        alike = np.zeros(X.shape[1], dtype=np.intp) if kinds is None else kinds
        sized = Scaling(deviation=found.of) if scaling is None else scaling.standardised(None, found.of)
        return sized, alike, np.zeros(0, dtype=np.intp)
    if scaling is not None or sp.issparse(X):
        raise UnsupportedCombination(
            f"tails is {preparation.tails} and sizes are released, which needs dense features as they come"
        )
    kinds = found.kinds() if kinds is None else kinds
    seen = Scaling(-found.most, found.most, origin="zero")
    lower, upper = between(found, *_tails(X, seen, kinds, preparation, rng, book, numbers))
    deviation = found.of.copy()
    deviation[numbers] = 1.0
    if not preparation.curves:
        return Scaling(lower, upper, deviation=deviation), kinds, numbers
    deviation = np.append(deviation, np.ones(len(numbers)))
    return Scaling(lower, upper, deviation=deviation, curved=numbers), kinds, numbers


def _without_tails(
    X: Any,
    scaling: Scaling | None,
    kinds: npt.NDArray[np.intp],
    preparation: Preparation,
    rng: np.random.Generator,
    book: Book,
    numbers: Places | None,
) -> Scaling:
    """Return `scaling` with bounds of numbers as far apart as a first, noisier look at them says."""
    declared = None if sp.issparse(X) else of_numbers(scaling, numbers)
    if scaling is None or declared is None or numbers is None:
        raise UnsupportedCombination(
            f"tails is {preparation.tails}, which needs dense features, some of them numbers with declared "
            "bounds"
        )
    mean, _, reach = _tails(X, declared, kinds, preparation, rng, book, numbers)
    return cut_off(scaling, numbers, mean, reach)


def _tails(
    X: Any,
    scaling: Scaling,
    kinds: npt.NDArray[np.intp],
    preparation: Preparation,
    rng: np.random.Generator,
    book: Book,
    numbers: Places,
) -> tuple[Floats, Floats, Floats]:
    """Return means and deviations of numbers scaled by `scaling`, and how far from means tails begin.

    By four releases, with more noise than those that follow.
    """
    look, tails = preparation.look, preparation.tails
    if look is None or tails is None:
        raise UnsupportedCombination("a look at tails needs a preparation that says where to cut them off")
    features = Features(X, scaling=scaling, intercept=False, reads=_READS, columns=numbers)

    def note(event: GaussianEvent, purpose: str) -> None:
        book(event, f"{purpose}, a first look at numbers")

    bounded = Bounded.of(scaling, len(numbers), declared=not preparation.sized)
    mean, deviation, noise = _moments(features, Kinds(kinds[numbers]), bounded, look, rng, note)
    return mean, deviation, tails * deviation + LOOK_REACH * noise


def _moments(
    features: Features,
    pieces: Kinds,
    bounded: Bounded,
    preparation: Preparation,
    rng: np.random.Generator,
    book: Book,
) -> tuple[Floats, Floats, Floats]:
    """Return means, deviations (of sparse features around zero) and the noise on means, by four releases."""
    size = math.sqrt(len(pieces))  # sensitivity of each release
    count = _counting(preparation.norm_noise, size)
    add = _summing(preparation.moment_noise, size, _slack(features))
    blur = add.standard_deviation / features.n_rows

    def lengths(centre: Floats | None, purpose: str) -> tuple[Floats, npt.NDArray[np.bool_]]:
        if preparation.norm_noise is not None:
            book(GaussianEvent(preparation.norm_noise), purpose)
        counts = count.release(norm_counts(features, pieces, centre), rng)
        longest = longest_pieces(pieces, centre, bounded)
        noise, within = count.standard_deviation, preparation.within
        n_rows = features.n_rows
        bounds = [bound_from(c, noise, within, most, n_rows) for c, most in zip(counts, longest, strict=True)]
        return np.array(bounds), np.array([mostly_absent(c, noise, n_rows) for c in counts])

    def released(sums: Callable[[], Floats], purpose: str) -> Floats:
        if preparation.moment_noise is not None:
            book(GaussianEvent(preparation.moment_noise), purpose)
        return np.asarray(add.release(sums(), rng) / features.n_rows)

    bounds, absent = lengths(None, "lengths of rows")
    mean = released(lambda: row_sums(features, pieces, bounds), "means of features") * pieces.spread(bounds)
    for members, bound in zip(pieces.members, bounds, strict=True):
        mean[members] = drawn_together(mean[members], blur * bound)
    centre = None if features.sparse else mean
    blurred = blur * pieces.spread(bounds)
    # what noise on a mean adds to the squares around it is known
    known = np.square(mean) if features.sparse else np.square(blurred)
    tighter, _ = lengths(centre, "lengths of rows less the means")
    # where most rows have nothing, all of these have the length of the mean, and say nothing of those that do
    bounds = np.where(absent, np.maximum(tighter, bounds), tighter)
    squares = released(lambda: square_sums(features, pieces, bounds, centre), "deviations of features")
    variance = squares * np.square(pieces.spread(bounds)) - known
    deviation = np.empty(features.n_features)
    for members, bound in zip(pieces.members, bounds, strict=True):
        found = deviations(variance[members], blur * bound * bound, bound)
        if bounded.declared and not features.sparse:
            found = _floor_rare(mean[members], found)
        deviation[members] = found
    return mean, deviation, blurred


def _with_curves(kinds: npt.NDArray[np.intp], scaling: Scaling | None) -> npt.NDArray[np.intp]:
    """Return the kinds of prepared features: second columns are of the kind of the first."""
    curved = None if scaling is None else scaling.curved
    return kinds if curved is None else np.append(kinds, kinds[curved])


class Bounded(NamedTuple):
    """Which features lie between bounds, after scaling between `lowest` and 1; public or released.

    Attributes
    ----------
    features : array of bool
    declared : bool
        Whether bounds were declared, of all features, so that those between 0 and 1 are likely to be flags.
    lowest : float
        0, or -1 where zero stays at zero.
    """

    features: npt.NDArray[np.bool_]
    declared: bool
    lowest: float = 0.0

    @classmethod
    def of(cls, scaling: Scaling | None, n_prepared: int, declared: bool) -> Bounded:
        """Return what a scaling says of bounds."""
        features = np.zeros(n_prepared, dtype=bool)
        if scaling is None or scaling.lower is None:
            return cls(features, declared=False)
        features[:] = True  # second columns lie between 0 and 1
        features[: len(scaling.lower)] = np.isfinite(scaling.lower)
        # declared bounds of sparse features, which are not centred, need no lower end
        found_around_zero = scaling.origin == "zero" and not declared
        return cls(features, declared, lowest=-1.0 if found_around_zero else 0.0)


def _floor_rare(mean: Floats, deviation: Floats) -> Floats:
    """Return deviations of features in [0, 1], those of rare categories no smaller than half of the usual.

    A rare category blown up to the size of the others lets one coefficient swing a small group's predictions
    from step to step. A feature of mean m that is 0 or 1 has variance m (1 - m), one in between has less;
    numbers that are nearly always at one end are much like rare categories.
    """
    variance = np.square(deviation)
    category = variance > 0.5 * mean * (1.0 - mean)
    least = _SMALLEST_SHARE * math.sqrt(float(np.mean(variance)))
    return np.where(category, np.maximum(deviation, least), deviation)


def norm_counts(features: Features, kinds: Kinds, centre: Floats | None = None) -> Floats:
    """Return how many pieces have a norm in each bin, (B, bins); **private**.

    One row changes one entry for each kind by 1.
    """
    counts = np.zeros((len(kinds), len(_EDGES) + 1))
    for block in _blocks(features, centre):
        for counted, norms in zip(counts, kinds.norms(block).T, strict=True):
            counted += np.bincount(np.searchsorted(_EDGES, norms), minlength=len(counted))
    return counts


def longest_pieces(kinds: Kinds, centre: Floats | None, bounded: Bounded) -> Floats:
    """Return how long pieces can be, infinite for kinds of which some feature has no bounds.

    From public and released values alone; a longer piece would be shrunk like any other.
    """
    reach = np.ones(len(bounded.features))
    if centre is not None:
        reach = np.maximum(np.abs(centre - bounded.lowest), np.abs(1.0 - centre))
    reach[~bounded.features] = np.inf
    return np.array([float(np.linalg.norm(reach[members])) for members in kinds.members])


def bound_from(
    counts: Floats, noise: float, within: float, longest: float = math.inf, n_rows: float = 0.0
) -> float:
    """Return the edge below which a share `within` of the rows lies, by counts that stand out of the noise.

    Pieces in the first bin, of hardly any length, are within every bound: they tell it only if no others do,
    and where `longest`, the most that is possible, is known, only if they may be all of `n_rows`: others that
    do not stand out of the noise may be a flag that few rows have.
    Of so many bins, some always stand out by chance: those more than two octaves from the fullest have to
    stand out by more, and count only if `longest` is known. If none does, the bound is a third of `longest`:
    features that fill their bounds evenly lead to more than that, categories and what clusters to less. If
    that is not known, it is the end of the nine bins with the largest sum: together they stand out with half
    the rows.
    """
    bins = np.arange(len(counts))
    possible = np.where((bins > 0) & (bins <= np.searchsorted(_EDGES, longest)), counts, -np.inf)
    near = np.abs(bins - int(np.argmax(possible))) <= _NEAR
    far = _FAR_DEVIATIONS if math.isfinite(longest) else math.inf
    sure = np.where(possible > np.where(near, _NOISE_DEVIATIONS, far) * max(noise, _SMALLEST), counts, 0.0)
    if not sure.any():
        everybody = not math.isfinite(longest) or counts[0] >= n_rows - _EVERYBODY_DEVIATIONS * noise
        if everybody and counts[0] > _NOISE_DEVIATIONS * noise:
            return float(_EDGES[0])
        if math.isfinite(longest):
            return longest / 3.0
        around = np.convolve(counts, np.ones(2 * _BLURRED + 1), mode="same")
        sure[min(int(np.argmax(around)) + _BLURRED, len(counts) - 1)] = 1.0
    below = np.cumsum(sure)
    place = int(np.searchsorted(below, within * below[-1]))
    return float(_EDGES[min(place, len(_EDGES) - 1)])


def mostly_absent(counts: Floats, noise: float, n_rows: int) -> bool:
    """Return whether at least half of the pieces surely have hardly any length, as rows without a flag."""
    return bool(counts[0] - _NOISE_DEVIATIONS * noise > n_rows / 2)


def row_sums(features: Features, kinds: Kinds, bounds: Floats) -> Floats:
    """Return the sum of the rows, each piece shrunk to its bound and divided by it; **private**.

    One row changes it by at most sqrt(B) in L2 norm.
    """
    total = np.zeros(features.n_features)
    for block in _blocks(features, None):
        total += np.asarray(kinds.shrunk(block, bounds).sum(axis=0)).ravel()
    return total


def square_sums(features: Features, kinds: Kinds, bounds: Floats, centre: Floats | None) -> Floats:
    """Return the sum of ``(x / bound)^2`` over rows less `centre`, pieces shrunk to `bounds`; **private**.

    One row changes it by at most sqrt(B) in L2 norm.
    """
    total = np.zeros(features.n_features)
    for block in _blocks(features, centre):
        total += np.asarray(squared(kinds.shrunk(block, bounds)).sum(axis=0)).ravel()
    return total


def drawn_together(values: Floats, noise: float, usual: float | None = None) -> Floats:
    """Return values drawn towards `usual`, their mean, by the share of their spread that noise explains."""
    if noise == 0.0:
        return values
    centre = float(np.mean(values)) if usual is None else usual
    spread = max(0.0, float(np.var(values)) - noise * noise)
    kept = spread / (spread + noise * noise)
    return centre + kept * (values - centre)


def deviations(variances: Floats, noise: float, bound: float) -> Floats:
    """Return deviations from variances of rows of norm at most `bound`, with noise of this deviation."""
    usual = max(float(np.mean(variances)), _FLOOR_DEVIATIONS * noise / math.sqrt(len(variances)))
    floor = max(min(_FLOOR_DEVIATIONS * noise, usual), 1e-6 * bound * bound / len(variances))
    return np.sqrt(np.maximum(drawn_together(variances, noise, usual), floor))


def _blocks(features: Features, centre: Floats | None) -> Any:
    """Yield the rows less `centre`, a block at a time."""
    for block in features.in_order():
        if centre is not None:
            with np.errstate(over="ignore"):
                block -= centre
        yield block


def _slack(features: Features) -> float:
    """Return room for rounding that depends on public numbers only, as the size of noise must.

    How many sparse rows fit in a block depends on their entries: there is room for blocks of any size.
    """
    sizes = BLOCK_ROWS if features.sparse else (features.block_rows,)
    return max(summation_slack(features.n_rows, size) for size in sizes)


def _counting(noise: float | None, sensitivity: float) -> Mechanism:
    return NoNoise() if noise is None else RoundedGaussianMechanism(noise, sensitivity, whole=True)


def _summing(noise: float | None, sensitivity: float, slack: float) -> Mechanism:
    return NoNoise() if noise is None else RoundedGaussianMechanism(noise, sensitivity, slack=slack)
