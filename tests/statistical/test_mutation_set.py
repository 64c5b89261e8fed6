"""Deliberately broken variants, each of which must be caught, by something that passes on the code as it is.

A mutant patches one shipped function. A catcher runs an audit or a check and says whether it raised the
alarm. `docs/threat-model.md` has the same table in words.
"""

import contextlib
import dataclasses
import re
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from ratewise import RateConstrainedClassifier, demographic_parity
from ratewise.accounting import Budget, GaussianEvent, LaplaceEvent, Ledger, TrainingEvent, accountant, epsilon
from ratewise.accounting import ledger as ledger_module
from ratewise.accounting.events import single
from ratewise.audit import audit_step, check_noise, check_replay, check_sampling
from ratewise.cli.app import cli
from ratewise.cli.console import Table
from ratewise.data import cells, files
from ratewise.data import table as units
from ratewise.data.cells import parse_text
from ratewise.distributed import arrow, clusters, open_rows, partitions
from ratewise.estimators import classifier as classifier_module
from ratewise.estimators.evaluation import RowSession, evaluate
from ratewise.exceptions import BudgetExceeded, InvalidInput, LedgerError
from ratewise.mechanisms.noise import RoundedGaussianMechanism
from ratewise.mechanisms.randomness import KeyedGenerator, RandomStreams, SecureGenerator
from ratewise.mechanisms.sampling import KeyedSample
from ratewise.models import additive
from ratewise.models import rows as rows_module
from ratewise.models.additive import AdditiveEngine, Sums
from ratewise.preprocessing import discovery
from ratewise.preprocessing.basis import Basis
from ratewise.preprocessing.grids import ContinuousGrid
from ratewise.runs import Settings
from ratewise.runs.run import session_for
from ratewise.training.config import TrainingConfig
from ratewise.training.dual import DualUpdate
from ratewise.training.loop import Loop
from ratewise.training.session import Session

EVENT = TrainingEvent(1.0, 1, gradient_noise=1.0, histogram_noise=1.5, histogram="gaussian")
N_ROWS = 10  # of the games: one canary and nine opponents
DELTA = 0.01
GAMES = 3000


# ---------------------------------------------------------------------------------- who raises the alarm


def games(releases, attack="likelihood"):
    def caught(_):
        found = audit_step(
            EVENT, games=GAMES, releases=releases, attack=attack, delta=DELTA, random_state=3, confidence=0.999
        )
        return not found.passed

    return caught


def sampling(_):
    streams = RandomStreams.from_seed(5)
    return not all(check_sampling(rate, streams=streams).passed for rate in (0.05, 0.5))


def noise(_):
    return not check_noise(EVENT, steps=1500, streams=RandomStreams.from_seed(6)).passed


def replay(_):
    return not check_replay(EVENT, streams=RandomStreams.from_seed(7)).passed


N = 300
DECLARED = {
    "classes": [0, 1],
    "group_values": {"g": ["a", "b", "c"]},
    "feature_bounds": {"x": (-3, 3), "z": (-3, 3), "kind": ["k", "l"]},
}


def people():
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"x": rng.normal(size=N), "z": rng.normal(size=N), "kind": np.where(np.arange(N) % 3, "k", "l")})
    y = pd.Series((X["x"] > 0).astype(int))
    persons = pd.Series(np.arange(N) // 4, name="person")
    return X, y, pd.Series(np.where(np.arange(N) % 2, "a", "b")), persons


def model(**changes):
    config = TrainingConfig(steps=8, clip=0.3)  # below the norm of most gradients; each row is in some sample
    options = {"epsilon": 4.0, "delta": 1e-5, "config": config, **DECLARED, **changes}
    return RateConstrainedClassifier([demographic_parity("g", max_gap=0.5)], **options)


def beyond_sensitivity(max_rows, value=None):
    """Compare what gets noise in two fits that differ in one unit: a blank must move it by the sensitivity at most.

    `value` is put into a cell of that unit.
    """

    def caught(monkeypatch):
        seen = []

        def release(self, value, _):
            seen.append((self.sensitivity * (1 + self.slack), np.array(value, dtype=float)))
            return np.zeros_like(value)

        with monkeypatch.context() as patch:
            patch.setattr(RoundedGaussianMechanism, "release", release)
            for blank in (False, True):
                X, y, g, persons = people()
                X.loc[29, "x"] = X.loc[29, "x"] if value is None else value
                if blank:
                    gone = persons == 7 if max_rows else pd.Series(np.arange(N) == 29)
                    X, y, g = (table.astype(object) for table in (X, y, g))
                    X.loc[gone], y[gone], g[gone] = None, None, None
                options = {} if max_rows is None else {"rows_per_id": max_rows}
                ids = {} if max_rows is None else {"privacy_ids": persons}
                model(random_state=np.random.default_rng(1), **options).fit(X, y, sensitive_features={"g": g}, **ids)
        half = len(seen) // 2
        return any(
            np.linalg.norm(first - second) > bound
            for (bound, first), (_, second) in zip(seen[:half], seen[half:], strict=True)
        )

    return caught


def rare_values(_):
    """Find a value that one unit alone has more often than delta allows."""
    rng = np.random.default_rng(0)
    counted = discovery.count_values({"c": ["common"] * 5000 + ["rare"]}, None)
    kept = sum("rare" in discovery.release_values(counted, 3.0, 1e-4, rng)["c"] for _ in range(200))
    return kept > 2


def unused_rows(_):
    """Find values of rows that are not in use: a person may have any number of them."""
    weights = np.concatenate([np.ones(1000), np.zeros(5000)])
    column = ["common"] * 1000 + [f"v{k}" for k in range(5000)]
    counted = discovery.count_values({"c": column}, weights)
    return discovery.release_values(counted, 3.0, 1e-2, np.random.default_rng(0))["c"] != ("common",)


def features(_):
    """Look for the id among the features of a model."""
    X, y, g, persons = people()
    X["person"] = persons
    options = {**DECLARED, "feature_bounds": None}
    fitted = model(random_state=np.random.default_rng(1), **options).fit(
        X, y, sensitive_features={"g": g}, privacy_ids="person"
    )
    return "person" in list(fitted.feature_names_in_)


def storage(_):
    """Look whether the type of one partition, or a word in a file, changes how other rows are read."""
    columns = [pd.Series(np.array(["3000-01-01"], "M8[s]")), pd.Series(np.array(["2020-01-01"], "M8[ns]"))]
    places = np.arange(2, dtype=np.uint64)[:, None]
    pieces = [(pd.DataFrame({"v": column}), place, place) for column, place in zip(columns, places, strict=True)]
    try:
        joined = parse_text(partitions.join_by_id(pieces).frame["v"]).tolist()
    except pd.errors.OutOfBoundsDatetime:
        return True
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for last in ("", "a word"):
            path = Path(folder, "people.csv")
            path.write_text("\n".join(["v,y", "0,1", "1,0", "unknown,1", f"{last},0", ""]))
            found.append(parse_text(files.read_table(str(path)).frame["v"]).tolist()[:3])
    return joined != ["3000-01-01", "2020-01-01"] or found[0] != found[1]


def randomness(monkeypatch):
    """Look where the noise and the samples of a fit come from."""
    sources = []
    release = RoundedGaussianMechanism.release
    samples = Session.samples

    def watched(self, value, rng):
        sources.append(rng)
        return release(self, value, rng)

    def sampled(self, steps):
        sources.append(self.streams.sampling)
        return samples(self, steps)

    monkeypatch.setattr(RoundedGaussianMechanism, "release", watched)
    monkeypatch.setattr(Session, "samples", sampled)
    X, y, g, _ = people()
    model().fit(X, y, sensitive_features={"g": g})
    return not all(isinstance(source, SecureGenerator) for source in sources)


def partition(_):
    """Nobody is in group c: a domain that is declared has its cells all the same."""
    X, y, g, _ = people()
    fitted = model(random_state=np.random.default_rng(1)).fit(X, y, sensitive_features={"g": g})
    return fitted.constraints_.domain.columns["g"] != ("a", "b", "c")


def uncounted(ledger, happened):
    """Return the single releases that happened and that a ledger has not recorded."""
    recorded, seen = Counter(), Counter()
    for plan in ledger.admissions:
        for event, times in zip(plan.events, plan.released.values(), strict=True):
            recorded[single(event)[0]] += times
    for event, times in map(single, happened):
        seen[event] += times
    return seen - recorded


def ledger(monkeypatch):
    """Watch every release of a fit, and ask the ledger whether it counts them all."""
    seen = []
    release = RoundedGaussianMechanism.release

    def watched(self, value, rng):
        seen.append(self.noise)
        return release(self, value, rng)

    monkeypatch.setattr(RoundedGaussianMechanism, "release", watched)
    X, y, g, _ = people()
    fitted = model(ledger=Ledger(neighbours="zero_out"), random_state=np.random.default_rng(1))
    try:
        fitted.fit(X, y, sensitive_features={"g": g})
    except (LedgerError, InvalidInput, KeyError):
        return True  # the ledger itself refuses a release that it has not admitted
    event = fitted.plan_.training
    steps = TrainingEvent(
        event.sampling_rate,
        seen.count(event.gradient_noise),
        gradient_noise=event.gradient_noise,
        histogram_noise=event.histogram_noise,
        histogram=event.histogram,
    )
    others = [GaussianEvent(n) for n in seen if n not in (event.gradient_noise, event.histogram_noise)]
    assert len(others) == 3  # column histograms, correction, certificate
    return bool(uncounted(fitted.ledger_, [*others, steps]))


def observed(*tables, **options):
    """Return what is seen of a fit on each of the tables, apart from the released values."""
    found = []
    for X, y in tables:
        ledger = Ledger(neighbours="zero_out")
        fitted = model(ledger=ledger, random_state=np.random.default_rng(1), **options)
        try:
            fitted.fit(X, y, sensitive_features={"g": people()[2]})
            said = fitted.privacy_.epsilon
        except Exception as error:
            said = repr(error)
        found.append((said, ledger.events()))
    return found


def membership(_):
    """Finding 3: ask whether anybody is in a class."""
    X, y, _, _ = people()
    somebody, nobody = (pd.Series(np.where(np.arange(N) == 29, label, y)) for label in (2, 7))
    first, second = observed((X, somebody), (X, nobody), classes=[0, 1, 2])
    return first != second


def adaptive_choice(_):
    """Finding 6: choose the second of two releases by the outcome of the first."""
    ledger = Ledger(cap=Budget(1.0, 1e-5))
    ledger.admit(GaussianEvent(10.0)).release()
    return not any(map(ledger.would_exceed, (GaussianEvent(1 / 0.2485), LaplaceEvent(1 / 0.6765))))


def accounting_of_rows(_):
    """Finding 7: compare the accounting of tables that have the same public facts."""
    X, y, _, _ = people()
    first, second = observed((X, y), (X.assign(x=np.sign(X["x"])), y))
    return first != second


def records_of_time(_):
    """Finding 10: compare the records of two runs that differ in their times only."""
    found = []
    for _ in range(2):
        ledger = Ledger()
        ledger.admit(GaussianEvent(10.0), purpose="counts").release()
        found.append(re.sub(r'"(id|plan|checksum)": ?"[^"]*"', "", ledger.to_json()))
    return found[0] != found[1]


def lists_of_groups(_):
    """Give the groups as a list, with and without one entry that is no text."""
    X, y, g, _ = people()
    found = []
    for groups in (list(map(str, g)), [None, *map(str, g[1:])]):
        try:
            fitted = model(random_state=1).fit(X.to_dict("list"), y, sensitive_features=groups)
            found.append(fitted.privacy_.epsilon)
        except InvalidInput as error:
            found.append(str(error))
    return found[0] != found[1]


def rows_of_persons(_):
    """Compare the folders of runs on tables of the same persons, one of whom has a row more."""
    X, y, _, ids = people()
    found = []
    for rows in (slice(None), slice(1, None)):
        frame = X.assign(y=y, person=np.asarray(ids) // 2)[rows]
        settings = Settings(label="y", epsilon=50.0, delta=1e-6, training={"steps": 1}, privacy_id="person")
        with tempfile.TemporaryDirectory() as place:
            made = Table("people.csv", frame, {}, {}, ()).new_run(
                Path(place) / "run",
                settings=settings,
                schema=None,
                plan=session_for(frame, settings, seed=1)[1].plan,
                command=["train"],
            )
            found.append({k: v for k, v in made.description.items() if k in ("units", "reading", "outside", "rows")})
    return found[0] != found[1]


def quoted_cells(_):
    """Let a task of a Dask table fail for one cell."""
    frames = pytest.importorskip("dask.dataframe")
    X, y, _, _ = people()
    whole = X.assign(x=["1.5"] * (N - 1) + ["secret"], y=y)
    whole["x"] = whole["x"].astype(object)
    table = frames.from_pandas(whole, npartitions=2)
    table["x"] = table["x"].map_partitions(lambda column: column.astype(float), meta=("x", "f8"))
    try:
        RateConstrainedClassifier(None, classes=[0, 1]).fit(table, "y")
    except Exception as error:
        return "secret" in str(error)
    raise AssertionError("the task must fail")


def long_texts_in_files(_):
    """Read a CSV data set in which a row is longer than the blocks in which Arrow reads."""
    dataset = pytest.importorskip("pyarrow.dataset")
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "rows.csv"
        path.write_text("a,y\n" + "k,1\n" * 300_000 + "k" * 5_000_000 + ",0\n")
        try:
            open_rows(dataset.dataset(path, format="csv"), "y").count_units()
        except InvalidInput:
            return True
    return False


def cells_that_stop_a_fit(_):
    """Read dates in all spellings: no cell may raise an error."""
    try:
        parse_text(["2020-01-01T10:00Z", "12 Mar 2021 10:00z", "12 Mar 2021 10:00 utc"])
    except ValueError:
        return True
    return False


def answers_of_commands(_):
    """Ask a command, of which a ledger refuses the plan, about tables with different labels."""
    found = []
    for label in ("s1", "s2"):
        with tempfile.TemporaryDirectory() as place:
            path, ledger = Path(place) / "people.csv", Path(place) / "ledger.json"
            pd.DataFrame({"x": range(N), "y": [label] + ["s0", "s1"] * (N // 2 - 1) + ["s0"]}).to_csv(path, index=False)
            words = ["train", path, "--label", "y", "--epsilon", 60, "--out", path.with_name("run")]
            given = map(str, [*words, "--ledger", ledger, "--ledger-cap", 0.001])
            found.append(CliRunner().invoke(cli, list(given)).exit_code)
    return found[0] != found[1]


def exact_counts(_):
    """Evaluate without noise on a ledger with a cap."""
    _, y, g, _ = people()
    with contextlib.suppress(BudgetExceeded):
        evaluate(None, y, y, sensitive_features={"g": g}, ledger=Ledger(cap=Budget(1.0, 1e-5)))
        return True
    return False


# -------------------------------------------------------------------------------------------- the mutants


def break_release(patch, release):
    patch.setattr(RoundedGaussianMechanism, "release", release)


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
        shape = (1, 1) if value.ndim == 2 else value.shape
        return value + self.standard_deviation * rng.standard_normal(shape)

    break_release(patch, release)


def the_same_noise_every_step(patch):
    def release(self, value, _):
        return value + self.standard_deviation * np.random.default_rng(0).standard_normal(value.shape)

    break_release(patch, release)


def forgotten_clip(patch):
    patch.setattr(additive, "clip_units", lambda *_: None)


def clip_at_twice_the_norm(patch):
    whole = additive.clip_units
    patch.setattr(additive, "clip_units", lambda r, norms, starts, clip: whole(r, norms, starts, 2 * clip))


def clip_by_another_norm(patch):
    """The norm of the residual instead of that of the gradient."""
    patch.setattr(Basis, "norms", lambda self, codes: np.ones(len(codes)))


def realised_batch_size(patch):
    whole = AdditiveEngine.sums

    def sums(self, sample, *given):
        found = whole(self, sample, *given)
        return Sums(found.gradient * (N_ROWS / max(1, len(sample))), found.histogram)

    patch.setattr(AdditiveEngine, "sums", sums)


def rows_counted_twice(patch):
    whole = additive.histogram_of
    patch.setattr(additive, "histogram_of", lambda *given: 2 * whole(*given))


def skipped_empty_batches(patch):
    whole = KeyedSample.units

    def units(self, start, stop):
        while not len(rows := whole(self, start, stop)):
            self = dataclasses.replace(self, key=self.key[::-1], step=self.step + 1, drawn={})
        return rows

    patch.setattr(KeyedSample, "units", units)


def fixed_size(patch):
    def units(self, start, stop):
        order = np.argsort(KeyedGenerator(self.key, self.step).random(stop - start))
        return np.sort(order[: max(1, round(len(order) * self.rate))])

    patch.setattr(KeyedSample, "units", units)


def with_raw_counts(patch, spoil):
    """Let the dual update of a loop see the raw histogram of a step."""
    run, update = Loop.run, DualUpdate.update

    def running(self, samples, streams, before_step=None):
        sums = self.engine.sums

        def remembering(*given):
            found = sums(*given)
            self.dual.raw = found.histogram
            return found

        self.engine.sums = remembering
        return run(self, samples, streams, before_step)

    def updating(self, histogram, schedule):
        raw = getattr(self, "raw", None)
        update(self, histogram if raw is None else spoil(self, histogram, raw), schedule)

    patch.setattr(Loop, "run", running)
    patch.setattr(DualUpdate, "update", updating)


def raw_denominators(patch):
    def spoil(_, histogram, raw):
        sizes = raw.sum(axis=1, keepdims=True) - histogram.sum(axis=1, keepdims=True)
        return histogram + sizes / histogram.shape[1]

    with_raw_counts(patch, spoil)


def ascent_by_raw_counts(patch):
    def spoil(dual, histogram, raw):
        dual.rate = 0.5 + 0.01 * raw[0, 0]
        return histogram

    with_raw_counts(patch, spoil)


def multipliers_of_raw_counts(patch):
    with_raw_counts(patch, lambda _, histogram, raw: histogram + 1e-3 * raw)


def partition_from_the_rows(patch):
    whole = Session.discover

    def discover(self):
        observed = {"g": tuple(sorted(set(self.rows.groups["g"])))}
        object.__setattr__(self.declarations, "group_values", observed)
        return whole(self)

    patch.setattr(Session, "discover", discover)


def with_admitted(patch, changed):
    """Let the ledger admit other events than the plan has."""
    whole = Ledger.admit

    def admit(self, events, **words):
        return whole(self, changed(dict(events)), **words)

    patch.setattr(Ledger, "admit", admit)


def forgotten_statistics(patch):
    with_admitted(patch, lambda events: {n: e for n, e in events.items() if n != "column histograms"})


def forgotten_certificate(patch):
    with_admitted(patch, lambda events: {n: e for n, e in events.items() if n != "certificate"})


def steps_outside_the_ledger(patch):
    def steps(self):
        for record in self.loop.run(self.samples(self.plan.steps), self.streams):
            self.history.add(record)
            yield record

    patch.setattr(Session, "steps", steps)


def statistics_of_one_column(patch):
    """The sensitivity of one column for all of them."""
    patch.setattr(Session, "_statistics_norm", lambda self, log_cells: 1.0)


def threshold_without_delta(patch):
    patch.setattr(discovery, "discovery_threshold", lambda *_: 1.0)


def values_of_unused_rows(patch):
    whole = discovery.ValueCounts.of

    def count(texts, weights):
        used = whole(texts, weights)
        return discovery.ValueCounts((text, used.get(text, 0.0)) for text in whole(texts, None))

    patch.setattr(discovery.ValueCounts, "of", count)


def unknown_labels_counted(patch):
    whole = units.Units.table_weights
    patch.setattr(units.Units, "table_weights", lambda self, usable: whole(self, np.ones_like(usable)))


def rows_sampled_instead_of_persons(patch):
    def split(codes, n_units, max_rows, weighting, usable):
        found = units.id_units(codes, n_units, max_rows, weighting, usable)
        blocks = units.Units.blocks

        class Rows(units.Units):
            def blocks(self, sample, at_once):
                for rows, _ in blocks(self, sample, at_once):
                    yield rows, None

        return Rows(**vars(found))

    patch.setattr(rows_module, "id_units", split)


def rows_beyond_the_bound(patch):
    whole = units.id_units

    def unbounded(codes, n_units, max_rows, weighting, usable):
        found = whole(codes, n_units, 100, weighting, usable)
        return units.Units(n_units, n_units * max_rows, found.order, found.starts)

    patch.setattr(rows_module, "id_units", unbounded)


def id_among_the_features(patch):
    whole = classifier_module.columns_by_name

    def by_name(X, *given):
        return X, *whole(X, *given)[1:]

    patch.setattr(classifier_module, "columns_by_name", by_name)


def classes_without_rows_rejected(patch):
    whole = RateConstrainedClassifier.fit

    def fit(self, X, y, **more):
        if self.classes is not None and set(self.classes) - set(y):
            raise InvalidInput("a declared class has no rows")
        return whole(self, X, y, **more)

    patch.setattr(RateConstrainedClassifier, "fit", fit)


def capped_totals(patch):
    def spent(self, plans):
        events = [event for plan in plans for event in plan]
        return epsilon(events, self.cap.delta, self.neighbours) / self.cap.epsilon

    patch.setattr(accountant.PrivacyFilter, "spent", spent)


def statistics_by_the_content_of_columns(patch):
    whole = RateConstrainedClassifier.fit

    def fit(self, X, y, **more):
        if X["x"].nunique() <= 2:
            self.config = dataclasses.replace(self.config, statistics_share=0.01)
        return whole(self, X, y, **more)

    patch.setattr(RateConstrainedClassifier, "fit", fit)


def common_types_of_partitions(patch):
    patch.setattr(partitions, "joined_cells", lambda parts: pd.concat(parts, ignore_index=True))


def numbers_where_words_are_few(patch):
    patch.setattr(files, "parse_text", lambda *_: None)  # whatever conversion changes


def another_path_for_huge_values(patch):
    whole = ContinuousGrid.code_numbers

    def code(self, values):
        return whole(self, np.round(values) if np.nanmax(np.abs(values), initial=0.0) > 1e77 else values)

    patch.setattr(ContinuousGrid, "code_numbers", code)


def clock_times_in_records(patch):
    patch.setattr(ledger_module, "software_version", lambda: str(time.monotonic_ns()))


def time_zones_in_capitals_only(patch):
    whole = cells._time_of_text

    def read(text, order):
        return int(text[-2:]) if text.endswith(("z", "utc")) else whole(text, order)

    patch.setattr(cells, "_time_of_text", read)


def names_by_the_content_of_lists(patch):
    whole = classifier_module.columns_by_name

    def by_name(X, y, sensitive, ids=None):
        if isinstance(sensitive, list) and all(isinstance(entry, str) for entry in sensitive):
            raise InvalidInput(f"sensitive_features is {sensitive[0]!r}, which is no column of X")
        return whole(X, y, sensitive, ids)

    patch.setattr(classifier_module, "columns_by_name", by_name)


def rows_in_run_folders(patch):
    whole = Table.new_run

    def new_run(self, out, **made):
        return whole(dataclasses.replace(self, reading={"rows": len(self.frame)}), out, **made)

    patch.setattr(Table, "new_run", new_run)


def labels_counted_by_commands(patch):
    whole = Table.read.__func__

    def read(cls, data, given):
        found = whole(cls, data, given)
        if found.frame["y"].nunique() > 2:
            raise InvalidInput("y has too many values")
        return found

    patch.setattr(Table, "read", classmethod(read))


def evaluations_outside_the_ledger(patch):
    admitted = RowSession.admit
    patch.setattr(RowSession, "admit", lambda self: None if self.epsilon is None else admitted(self))


def errors_of_tasks_as_they_are(patch):
    patch.setattr(clusters, "_computing", contextlib.nullcontext)


def blocks_of_one_size(patch):
    patch.setattr(arrow, "_readable", lambda fragment: fragment)


def noise_of_an_insecure_generator(patch):
    whole = RandomStreams.from_seed
    patch.setattr(
        RandomStreams, "from_seed", lambda seed=None: whole(np.random.default_rng() if seed is None else seed)
    )


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
    (the_same_noise_every_step, noise),
    (forgotten_clip, games("gradient")),
    (forgotten_clip, beyond_sensitivity(None)),
    (clip_at_twice_the_norm, games("gradient")),
    (clip_by_another_norm, games("gradient")),
    (clip_by_another_norm, beyond_sensitivity(None)),
    (realised_batch_size, games("gradient")),
    (rows_counted_twice, games("histogram")),
    (rows_counted_twice, beyond_sensitivity(None)),
    (skipped_empty_batches, sampling),
    (fixed_size, sampling),
    (raw_denominators, replay),
    (ascent_by_raw_counts, replay),
    (multipliers_of_raw_counts, replay),
    (partition_from_the_rows, partition),
    (forgotten_statistics, ledger),
    (forgotten_certificate, ledger),
    (steps_outside_the_ledger, ledger),
    (statistics_of_one_column, beyond_sensitivity(None)),
    (unknown_labels_counted, beyond_sensitivity(None)),
    (threshold_without_delta, rare_values),
    (values_of_unused_rows, unused_rows),
    (rows_sampled_instead_of_persons, beyond_sensitivity(3)),
    (rows_beyond_the_bound, beyond_sensitivity(1)),
    (id_among_the_features, features),
    (noise_of_an_insecure_generator, randomness),
    (classes_without_rows_rejected, membership),
    (capped_totals, adaptive_choice),
    (statistics_by_the_content_of_columns, accounting_of_rows),
    (another_path_for_huge_values, beyond_sensitivity(None, 1e200)),
    (clock_times_in_records, records_of_time),
    (common_types_of_partitions, storage),
    (numbers_where_words_are_few, storage),
    (time_zones_in_capitals_only, cells_that_stop_a_fit),
    (names_by_the_content_of_lists, lists_of_groups),
    (rows_in_run_folders, rows_of_persons),
    (errors_of_tasks_as_they_are, quoted_cells),
    (blocks_of_one_size, long_texts_in_files),
    (labels_counted_by_commands, answers_of_commands),
    (evaluations_outside_the_ledger, exact_counts),
]
CATCHERS = {
    "gradient": games("gradient"),
    "histogram": games("histogram"),
    "together": games("together"),
    "difference": games("histogram", "difference"),
    "noise": noise,
    "sampling": sampling,
    "replay": replay,
    "partition": partition,
    "ledger": ledger,
    "sensitivity of rows": beyond_sensitivity(None),
    "sensitivity of persons with one row": beyond_sensitivity(1),
    "sensitivity of persons": beyond_sensitivity(3),
    "rare values": rare_values,
    "unused rows": unused_rows,
    "features": features,
    "randomness": randomness,
    "membership": membership,
    "adaptive choice": adaptive_choice,
    "accounting of rows": accounting_of_rows,
    "sensitivity of a huge value": beyond_sensitivity(None, 1e200),
    "records of time": records_of_time,
    "storage": storage,
    "cells": cells_that_stop_a_fit,
    "lists of groups": lists_of_groups,
    "rows of persons": rows_of_persons,
    "quoted cells": quoted_cells,
    "long texts": long_texts_in_files,
    "answers of commands": answers_of_commands,
    "exact counts": exact_counts,
}


@pytest.mark.parametrize("name", CATCHERS)
def test_no_alarm_for_the_code_as_it_is(name, monkeypatch):
    assert not CATCHERS[name](monkeypatch)


@pytest.mark.parametrize(
    ("mutant", "catcher"), MUTANTS, ids=[f"{mutant.__name__}-{number}" for number, (mutant, _) in enumerate(MUTANTS)]
)
def test_every_mutant_is_caught(mutant, catcher, monkeypatch):
    mutant(monkeypatch)
    assert catcher(monkeypatch)
