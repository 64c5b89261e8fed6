"""Mutants of the releases that standardise features; each must be caught, the code as it is must not.

They are made in three ways: five where no bounds are declared, sizes first; eight where numbers are looked
at before, to cut off their tails; and nine where sizes tell which features are numbers, to be looked at then.

Two catchers. `released` replays: on two data sets that differ in one row, with the **same** released values
put in place of the noisy ones, everything outside the releases must come out the same (noise, sensitivities,
the scaling), and what goes into a release may differ by one row's worth only; with made-up released values,
bounds must follow them. Whatever is read off raw rows, or leaves without a release, shows. `noised` looks at
many runs: every release must be booked before it happens, with the noise that it has, and noise must follow
its law.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from scipy import stats

from ratewise import sizes, standardisation
from ratewise.accounting.events import GaussianEvent
from ratewise.mechanisms import NoNoise, RoundedGaussianMechanism
from ratewise.plan import Preparation
from ratewise.scaling import Scaling

KINDS = np.array([0, 1, 0])
FALSE_ALARM = 1e-5
MOMENTS = ["norms", "means", "centred norms", "squares"]
HUGE = 1e4


class Way(NamedTuple):
    """How features are standardised, and what is released then."""

    preparation: Preparation
    scaling: Scaling | None
    numbers: np.ndarray | None
    names: list[str]
    sensitivities: list[float]


SIZED = Way(
    Preparation(norm_noise=6.0, moment_noise=3.0, sized=True),
    None,
    None,
    ["sizes", *MOMENTS],
    [1.0] + [np.sqrt(2)] * 4,
)
LOOKED = Way(
    Preparation(norm_noise=6.0, moment_noise=3.0, tails=2.0),
    Scaling(np.full(3, -50.0), np.full(3, 50.0)),
    np.array([0, 2]),
    [f"{name} at first" for name in MOMENTS] + MOMENTS,
    [1.0] * 4 + [np.sqrt(2)] * 4,  # numbers are of one kind, all features of two
)

NUMBERS = Way(
    LOOKED.preparation,
    LOOKED.scaling,
    np.array([0, 1]),
    LOOKED.names,
    [np.sqrt(2)] * 8,  # numbers are of two kinds
)

FOUND = Way(
    Preparation(norm_noise=6.0, moment_noise=3.0, sized=True, tails=2.0, curves=True),
    None,
    None,
    ["sizes", *LOOKED.names],
    [1.0] + [np.sqrt(2)] * 8,
)
# cut off so far out that numbers above zero end there
FAR = FOUND._replace(preparation=replace(FOUND.preparation, tails=12.0))

BENT = LOOKED._replace(preparation=Preparation(norm_noise=6.0, moment_noise=3.0, tails=2.0, bends=0.4))


class Release(NamedTuple):
    """What an onlooker notes of one release."""

    noise: float
    sensitivity: float
    deviation: float
    value: np.ndarray
    seen: np.ndarray
    booked: int


def rows(first=None):
    """Return made-up rows with the first one replaced."""
    X = np.random.default_rng(0).normal([5.0, 0.0, -1.0], [1.0, 2.0, 0.5], size=(400, 3))
    if first is not None:
        X[0] = first
    return X


def watch(monkeypatch, way, X, seed, forced=None):
    """Standardise under the eyes of an onlooker, who may put values in place of the released ones."""
    notes, booked = [], []
    whole = RoundedGaussianMechanism.release

    def release(self, value, rng):
        seen = whole(self, value, rng) if forced is None else forced[len(notes)].copy()
        about = (self.noise, self.sensitivity, self.standard_deviation)
        notes.append(Release(*about, np.array(value), np.array(seen), len(booked)))
        return seen

    with monkeypatch.context() as patch:
        patch.setattr(RoundedGaussianMechanism, "release", release)
        scaling = standardisation.standardise(
            X,
            way.scaling,
            KINDS,
            way.preparation,
            np.random.default_rng(seed),
            lambda event, _: booked.append(event),
            way.numbers,
        )
    return notes, booked, scaling


def follows(monkeypatch):
    """Tell whether bounds are those of made-up histograms in which all pieces of a kind have one length."""
    shrunk = standardisation.Kinds.shrunk
    for first, second in (((30, 35), (60, 50)), ((44, 41), (20, 25))):
        made_up = [
            np.zeros((3, sizes.PLACES)),
            np.zeros((2, 161)),
            np.zeros(3),
            np.zeros((2, 161)),
            np.ones(3),
        ]
        made_up[0][[0, 1, 2], [20, 20, 26]] = 1000.0
        made_up[1][[0, 1], first] = made_up[3][[0, 1], second] = 1000.0
        used = []

        def watched(self, block, bounds, used=used):
            used.append(tuple(bounds))
            return shrunk(self, block, bounds)

        with monkeypatch.context() as patch:
            patch.setattr(standardisation.Kinds, "shrunk", watched)
            _, _, scaling = watch(monkeypatch, SIZED, rows(), 3, made_up)
        if scaling.deviation[2] != pytest.approx(4096 * scaling.deviation[0], rel=1e-6):
            return False
        if used != [tuple(2.0 ** (np.array(bins) / 4 - 10)) for bins in (first, second)]:
            return False
    return True


def released(monkeypatch, way):
    """Tell whether a replay with one other row shows a difference that no release explains."""
    unit = np.eye(3)
    pairs = [
        (HUGE * unit[0], -HUGE * unit[0]),
        (HUGE * unit[0], HUGE * unit[1]),
        (unit[2] * 0, HUGE * unit[2]),
        (np.full(3, HUGE), np.full(3, 1 / HUGE)),
        (np.array([5.0, 0.7, -1.2]), np.zeros(3)),
    ]
    for one, other in pairs:
        before, _, scaling = watch(monkeypatch, way, rows(one), 3)
        if len(before) != len(way.names):
            return True
        forced = [note.seen for note in before]
        again = [watch(monkeypatch, way, rows(row), 3, forced) for row in (one, other)]
        (first, _, found), (second, _, compared) = again
        for left, right, sensitivity in zip(first, second, way.sensitivities, strict=True):
            if (left.noise, left.sensitivity) != (right.noise, right.sensitivity):
                return True
            if left.sensitivity != sensitivity:
                return True
            if np.linalg.norm(left.value - right.value) > 2 * left.sensitivity * (1 + 1e-9):
                return True
        for name in ("lower", "upper", "mean", "deviation", "curved", "bend_lower", "bend_upper"):
            if not np.array_equal(getattr(found, name), getattr(compared, name)):
                return True
            if not np.array_equal(getattr(found, name), getattr(scaling, name)):
                return True
    return way is SIZED and not follows(monkeypatch)


def noised(monkeypatch, way):
    """Tell whether a release is not booked before, or has other noise than was booked."""
    drawn: list[list[np.ndarray]] = [[] for _ in way.names]
    for seed in range(150):
        notes, booked, _ = watch(monkeypatch, way, rows(), seed)
        if [note.noise for note in notes] != [event.noise for event in booked]:
            return True
        if len(notes) != len(way.names) or any(note.booked < number for number, note in enumerate(notes, 1)):
            return True
        for place, note in zip(drawn, notes, strict=True):
            if note.deviation < note.noise * note.sensitivity:
                return True
            place.append(np.ravel(note.seen - note.value) / (note.noise * note.sensitivity))
    return min(map(p_value, drawn)) < FALSE_ALARM


def p_value(draws):
    """Return how likely such draws are if they are independent standard normal ones."""
    table = np.array(draws)
    z = (np.sum(table**2) - table.size) / np.sqrt(2 * table.size)
    later = np.sum(table[:-1] * table[1:]) / np.sqrt(table[1:].size)
    beside = np.sum(table[:, :-1] * table[:, 1:]) / np.sqrt(table[:, 1:].size)
    shape = stats.kstest(table.ravel(), stats.norm.cdf).pvalue
    return 4 * min(shape, *(2 * stats.norm.sf(abs(each)) for each in (z, later, beside)))


# -------------------------------------------------------------------------------------------- the mutants


def every_run(patch, around):
    """Let `around(number, release)` stand in for the release of that number, in every run."""
    whole, standardise = RoundedGaussianMechanism.release, standardisation.standardise
    count = [0]

    def release(self, value, rng):
        count[0] += 1
        return around(count[0] - 1, lambda: whole(self, value, rng), value)

    def again(*args, **options):
        count[0] = 0
        return standardise(*args, **options)

    patch.setattr(RoundedGaussianMechanism, "release", release)
    patch.setattr(standardisation, "standardise", again)


def without_noise(number):
    def mutate(patch):
        every_run(patch, lambda place, release, value: value.copy() if place == number else release())

    return mutate


def half_the_noise(number):
    def mutate(patch):
        def around(place, release, value):
            return value + 0.5 * (release() - value) if place == number else release()

        every_run(patch, around)

    return mutate


def past_the_mechanism(number):
    """Some releases are made by something that adds nothing, and that nobody watches; 0 means sizes."""

    def mutate(patch):
        if number == 0:
            patch.setattr(sizes, "RoundedGaussianMechanism", lambda *_, **__: NoNoise())
        else:  # both histograms share a mechanism, and both sums
            patch.setattr(standardisation, ("_summing", "_counting")[number % 2], lambda *_: NoNoise())

    return mutate


def unbooked(number):
    def mutate(patch):
        whole = standardisation.standardise

        def standardise(X, scaling, kinds, preparation, rng, book, numbers):
            count = [0]

            def forgetful(event, purpose):
                count[0] += 1
                if count[0] - 1 != number:
                    book(event, purpose)

            return whole(X, scaling, kinds, preparation, rng, forgetful, numbers)

        patch.setattr(standardisation, "standardise", standardise)

    return mutate


def bound_from_raw_counts(patch):
    whole, counts, kept = standardisation.bound_from, standardisation.norm_counts, []

    def norm_counts(features, kinds, centre=None):
        raw = counts(features, kinds, centre)
        kept[:] = list(raw)
        return raw

    patch.setattr(standardisation, "norm_counts", norm_counts)
    patch.setattr(standardisation, "bound_from", lambda found, *rest: whole(kept.pop(0), *rest))


def sizes_from_raw_counts(patch):
    counts, found, kept = sizes.size_counts, sizes.sizes_from, []

    def size_counts(features):
        kept[:] = [counts(features)]
        return kept[0].copy()

    patch.setattr(sizes, "size_counts", size_counts)
    patch.setattr(sizes, "sizes_from", lambda _, noise: found(kept[0], noise))


def sizes_from_the_largest_entries(patch):
    def find_sizes(features, noise, rng, book):
        found = whole(features, noise, rng, book)
        return found._replace(of=np.abs(features.prepared(np.arange(features.n_rows))).max(axis=0))

    whole = standardisation.find_sizes
    patch.setattr(standardisation, "find_sizes", find_sizes)


def numbers_from_raw_counts(patch):
    """Which features are numbers, and how large, is told by counts without noise."""
    counts, found, kept = sizes.size_counts, sizes.numbers_from, []

    def size_counts(features):
        kept[:] = [counts(features)]
        return kept[0].copy()

    patch.setattr(sizes, "size_counts", size_counts)
    patch.setattr(sizes, "numbers_from", lambda _, noise: found(kept[0], noise))


def told_of_rows(name, told):
    """One thing that is said of numbers is read off raw rows."""

    def mutate(patch):
        def find_sizes(features, noise, rng, book):
            found = whole(features, noise, rng, book)
            raw = features.prepared(np.arange(features.n_rows))[:, found.numbers]
            return found._replace(**{name: told(raw)})

        whole = standardisation.find_sizes
        patch.setattr(standardisation, "find_sizes", find_sizes)

    return mutate


def found_bounds_from_raw_rows(patch):
    whole, squares, kept = standardisation.between, standardisation.square_sums, []

    def square_sums(features, kinds, bounds, centre):
        kept.append(features.prepared(np.arange(features.n_rows)).copy())
        return squares(features, kinds, bounds, centre)

    def between(found, mean, deviation, reach):
        return whole(found, kept[-1].mean(axis=0), deviation, reach)

    patch.setattr(standardisation, "square_sums", square_sums)
    patch.setattr(standardisation, "between", between)


def entries_that_count_in_full(patch):
    """A row of three entries adds 1 to three places: a vector of norm sqrt(3)."""
    patch.setattr(sizes, "_weights", lambda seen: np.full(len(seen), sizes._ONE))


def bound_from_the_longest_row(patch):
    def bound_from(*found):
        return float(np.linalg.norm(kept[-1].prepared(np.arange(kept[-1].n_rows)), axis=1).max())

    counts, kept = standardisation.norm_counts, []

    def norm_counts(features, kinds, centre=None):
        kept.append(features)
        return counts(features, kinds, centre)

    patch.setattr(standardisation, "norm_counts", norm_counts)
    patch.setattr(standardisation, "bound_from", bound_from)


def raw_centre(features):
    return features.prepared(np.arange(features.n_rows)).mean(axis=0)


def centre_from_raw_rows_for_the_bound(patch):
    counts = standardisation.norm_counts

    def norm_counts(features, kinds, centre=None):
        return counts(features, kinds, None if centre is None else raw_centre(features))

    patch.setattr(standardisation, "norm_counts", norm_counts)


def centre_from_raw_rows_for_the_squares(patch):
    whole = standardisation.square_sums

    def square_sums(features, kinds, bounds, centre):
        return whole(features, kinds, bounds, raw_centre(features))

    patch.setattr(standardisation, "square_sums", square_sums)


def rows_not_shrunk(patch):
    patch.setattr(standardisation.Kinds, "shrunk", lambda kinds, block, bounds: block / kinds.spread(bounds))


def rows_shrunk_whole(patch):
    """Pieces are shrunk by the length of whole rows, and so may be longer than their bounds."""

    def norms(kinds, block):
        whole = np.linalg.norm(block, axis=1)
        return np.column_stack([whole, np.zeros(len(whole))])

    patch.setattr(standardisation.Kinds, "norms", norms)


def one_kind_for_the_noise(patch):
    """Noise as if rows were not cut in pieces."""
    for name in ("_counting", "_summing"):
        made = getattr(standardisation, name)
        patch.setattr(standardisation, name, lambda noise, size, *rest, made=made: made(noise, 1.0, *rest))


def half_the_sensitivity(patch):
    whole = standardisation._summing
    patch.setattr(standardisation, "_summing", lambda noise, bound, slack: whole(noise, bound / 2, slack))


def deviations_from_raw_squares(patch):
    whole, squares, kept = standardisation.deviations, standardisation.square_sums, []

    def square_sums(features, kinds, bounds, centre):
        total = squares(features, kinds, bounds, centre)
        raw = total * kinds.spread(bounds) ** 2 / features.n_rows
        kept[:] = [raw[members] for members in kinds.members]
        return total

    def deviations(variances, noise, bound):
        return whole(kept.pop(0), noise, bound)

    patch.setattr(standardisation, "square_sums", square_sums)
    patch.setattr(standardisation, "deviations", deviations)


def tails_from_raw_rows(patch):
    """The new bounds are a few deviations from the raw mean."""
    whole, kept = standardisation.cut_off, []
    squares = standardisation.square_sums

    def square_sums(features, kinds, bounds, centre):
        kept.append(features.prepared(np.arange(features.n_rows)).copy())
        return squares(features, kinds, bounds, centre)

    def cut_off(scaling, numbers, *_):
        return whole(scaling, numbers, kept[-1].mean(axis=0), 2.0 * kept[-1].std(axis=0))

    patch.setattr(standardisation, "square_sums", square_sums)
    patch.setattr(standardisation, "cut_off", cut_off)


def tails_from_the_raw_middle(patch):
    whole, sums, kept = standardisation.cut_off, standardisation.row_sums, []

    def row_sums(features, kinds, bounds):
        kept.append(raw_centre(features))
        return sums(features, kinds, bounds)

    patch.setattr(standardisation, "row_sums", row_sums)
    patch.setattr(standardisation, "cut_off", lambda s, places, _, reach: whole(s, places, kept[-1], reach))


def a_look_as_sharp_as_the_rest(patch):
    """The look is booked with its own noise, and made with less."""
    whole = standardisation._moments

    def moments(features, pieces, bounded, preparation, rng, book):
        less = LOOKED.preparation if preparation.tails is None else preparation
        return whole(features, pieces, bounded, less, rng, lambda *_: book(GaussianEvent(9.0), ""))

    patch.setattr(standardisation, "_moments", moments)


def one_kind_for_the_look(patch):
    """Noise on the look as if numbers were of one kind, whatever they are."""
    whole, made = (
        standardisation._moments,
        {n: getattr(standardisation, n) for n in ("_counting", "_summing")},
    )

    def moments(features, pieces, bounded, preparation, rng, book):
        looking = preparation.norm_noise == LOOKED.preparation.look.norm_noise
        with pytest.MonkeyPatch.context() as now:
            for name, make in made.items() if looking else ():
                now.setattr(standardisation, name, lambda noise, _, *rest, make=make: make(noise, 1.0, *rest))
            return whole(features, pieces, bounded, preparation, rng, book)

    patch.setattr(standardisation, "_moments", moments)


def bends_around_raw_means(patch):
    whole, sums, kept = standardisation.bent, standardisation.row_sums, []

    def row_sums(features, kinds, bounds):
        kept.append(raw_centre(features))
        return sums(features, kinds, bounds)

    patch.setattr(standardisation, "row_sums", row_sums)
    patch.setattr(
        standardisation, "bent", lambda s, places, size: whole(replace(s, mean=kept[-1]), places, size)
    )


def bends_as_wide_as_raw_deviations(patch):
    """Means are released ones, and only where numbers bend is read off the rows."""
    whole, squares, kept = standardisation.bent, standardisation.square_sums, []

    def square_sums(features, kinds, bounds, centre):
        kept.append(features.prepared(np.arange(features.n_rows)).std(axis=0))
        return squares(features, kinds, bounds, centre)

    def bent(scaling, places, size):
        found = whole(scaling, places, size)
        return replace(found, bend_upper=found.bend_lower + 2 * kept[-1][places])

    patch.setattr(standardisation, "square_sums", square_sums)
    patch.setattr(standardisation, "bent", bent)


EACH = [without_noise, half_the_noise, unbooked]
ANY = {
    "bound from the longest row": bound_from_the_longest_row,
    "raw centre, bound": centre_from_raw_rows_for_the_bound,
    "raw centre, squares": centre_from_raw_rows_for_the_squares,
    "rows not shrunk": rows_not_shrunk,
    "half the sensitivity": half_the_sensitivity,
    "deviations from raw squares": deviations_from_raw_squares,
    "past the mechanism, counts": past_the_mechanism(1),
    "past the mechanism, sums": past_the_mechanism(2),
    "one kind for the noise": one_kind_for_the_noise,
}
OF_ONE = {
    "sizes past the mechanism": (SIZED, past_the_mechanism(0), released),
    "bound from raw counts": (SIZED, bound_from_raw_counts, released),
    "rows shrunk whole": (SIZED, rows_shrunk_whole, released),
    "sizes from raw counts": (SIZED, sizes_from_raw_counts, released),
    "sizes from the largest entries": (SIZED, sizes_from_the_largest_entries, released),
    "entries that count in full": (SIZED, entries_that_count_in_full, released),
    "tails from raw rows": (LOOKED, tails_from_raw_rows, released),
    "tails from the raw middle": (LOOKED, tails_from_the_raw_middle, released),
    "one kind for the look": (NUMBERS, one_kind_for_the_look, released),
    "one kind for the look, sizes before": (FOUND, one_kind_for_the_look, released),
    "numbers from raw counts": (FOUND, numbers_from_raw_counts, released),
    "numbers as large as raw ones": (
        FOUND,
        told_of_rows("most", lambda raw: np.abs(raw).max(axis=0)),
        released,
    ),
    "numbers above zero if raw ones are": (
        FAR,
        told_of_rows("below_zero", lambda raw: (raw < 0).any(axis=0)),
        released,
    ),
    "found bounds from raw rows": (FOUND, found_bounds_from_raw_rows, released),
    "sizes past the mechanism, a look after": (FOUND, past_the_mechanism(0), released),
    "a look as sharp as the rest": (LOOKED, a_look_as_sharp_as_the_rest, noised),
    "bends around raw means": (BENT, bends_around_raw_means, released),
    "bends as wide as raw deviations": (BENT, bends_as_wide_as_raw_deviations, released),
}
MUTANTS = {
    **{
        f"{kind.__name__}: {name}{', a look after' * (way is FOUND)}": (way, kind(number), noised)
        for kind in EACH
        for way in (SIZED, LOOKED, FOUND)
        for number, name in enumerate(way.names)
        if way is LOOKED or name == "sizes"
    },
    **{
        f"{name}, {said}": (way, mutate, released)
        for said, way in (("sizes first", SIZED), ("a look first", LOOKED))
        for name, mutate in ANY.items()
    },
    **OF_ONE,
}


@pytest.mark.parametrize(
    "way",
    [SIZED, LOOKED, NUMBERS, BENT, FOUND, FAR],
    ids=["sizes first", "a look first", "two kinds", "bends", "sizes, then a look", "cut off far out"],
)
@pytest.mark.parametrize("catcher", [released, noised])
def test_no_alarm_for_the_code_as_it_is(catcher, way, monkeypatch):
    assert not catcher(monkeypatch, way)


@pytest.mark.parametrize("name", MUTANTS)
def test_every_mutant_of_standardisation_is_caught(name, monkeypatch):
    way, mutate, catcher = MUTANTS[name]
    mutate(monkeypatch)
    assert catcher(monkeypatch, way)
