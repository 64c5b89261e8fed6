"""Everything observable of private entry points is the same on neighbouring tables if the releases are.

The released values of a run are recorded and replayed on a neighbouring table. Two runs whose releases return the same
values must not differ in anything that leaves them: exceptions, warnings, output, ledger, attributes of the results,
number, order and parameters of the releases, sizes of what they release, random draws from the stream that selects
samples. Each variant replaces one unit of a table by a blank or by adversarial content, in every form of a table.

Releases with a threshold look at values that occur, so the size of what they add noise to depends on rows by nature.
Of these, the result is recorded (the values above the threshold) and replayed, after the code that reads the rows ran.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import fractions
import math
import re
import shutil
import types
import warnings
from collections.abc import Mapping

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from ratewise import Ledger, PrivateSearch, RateConstrainedClassifier, demographic_parity, equalized_odds, group, rate
from ratewise.accounting import Budget
from ratewise.constraints.domain import Numeric, at_least
from ratewise.estimators.evaluation import evaluate
from ratewise.estimators.postprocess import postprocess
from ratewise.mechanisms.noise import RoundedGaussianMechanism, RoundedLaplaceMechanism
from ratewise.training import session as session_module
from ratewise.training.config import TrainingConfig

THRESHOLDED = ((session_module, "release_values"), (session_module, "release_grids"))


class Tape:
    """Releases of a run, in order; a second run gets the values of the first."""

    def __init__(self, recorded=None):
        self.released = []
        self.private = []
        self.calls = []
        self.samplers = []
        self._recorded = recorded
        self._inside = False

    def _next(self, made, call):
        place = len(self.released)
        self.calls.append(call)
        value = made()
        if self._recorded is not None and place < len(self._recorded.released):
            value = self._recorded.released[place]
        self.released.append(value)
        return value.copy() if isinstance(value, np.ndarray) else value

    def release(self, real):
        """Return the replacement of a mechanism's `release`."""

        def release(mechanism, value, rng):
            if self._inside:
                return real(mechanism, value, rng)
            self.private.append((mechanism, np.array(value, dtype=np.float64)))
            call = (repr(mechanism), np.shape(value))
            return self._next(lambda: real(mechanism, value, rng), call)

        return release

    def release_parts(self, real):
        """Return the replacement of a mechanism's `release_parts`, of which networks make use."""

        def release(mechanism, parts, rng, out):
            def made():
                real(mechanism, parts, rng, out)
                return [part.copy() for part in out]

            values = self._next(made, (repr(mechanism), tuple(part.shape for part in parts)))
            for part, value in zip(out, values, strict=True):
                part[...] = value

        return release

    def threshold(self, real):
        """Return the replacement of a release with a threshold."""

        def release(columns, *args, **options):
            def made():
                self._inside = True
                try:
                    return real(columns, *args, **options)
                finally:
                    self._inside = False

            public = {k: v for k, v in options.items() if k in ("noise", "delta", "step", "max_rows", "named")}
            numbers = [value for value in args if isinstance(value, int | float)]
            return self._next(made, (real.__name__, tuple(columns), facts(numbers), facts(public)))

        return release


def observe(run, monkeypatch, capsys, tape):
    """Return everything observable about a run, with the releases of a tape."""
    with monkeypatch.context() as patch, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for law in (RoundedGaussianMechanism, RoundedLaplaceMechanism):
            patch.setattr(law, "release", tape.release(law.release))
            patch.setattr(law, "release_parts", tape.release_parts(law.release_parts))
        for module, name in THRESHOLDED:
            patch.setattr(module, name, tape.threshold(getattr(module, name)))
        real_samples = session_module.Session.samples

        def samples(session, steps):
            yield from real_samples(session, steps)
            tape.samplers.append(session.streams.sampling.bit_generator.state["state"])

        patch.setattr(session_module.Session, "samples", samples)
        try:
            with np.errstate(all="warn", under="ignore"):
                outcome = facts(run())
        except Exception as error:  # whatever it is, it is observable
            outcome = (type(error).__name__, str(error))
    printed = capsys.readouterr()
    return {
        "outcome": outcome,
        "warnings": [(w.category.__name__, str(w.message)) for w in caught],
        "calls": tape.calls,
        "sampling": facts(tape.samplers),
        "out": printed.out,
        "err": printed.err,
    }


def difference(first, second):
    """Return what differs between two observations."""
    return [f"{name}: {_short(first[name], second[name])}" for name in first if first[name] != second[name]]


def _short(first, second):
    if isinstance(first, tuple | list) and isinstance(second, tuple | list) and len(first) == len(second):
        for a, b in zip(first, second, strict=True):
            if a != b:
                return _short(a, b)
    return f"{first!r:.300} against {second!r:.300}"


def _without_ids(document):
    """Return the records of a ledger with its random identifiers replaced by their order."""
    seen = {}
    numbered = re.sub(r'"[0-9a-f]{16,64}"', lambda found: seen.setdefault(found.group(), f"id {len(seen)}"), document)
    return tuple(line for line in numbered.splitlines() if not line.startswith('"checksum"'))


def facts(thing, depth=0):  # noqa: C901 - one case per kind of value
    """Return a value built of tuples, text and numbers that is equal exactly if nothing observable differs."""
    if depth > 40:
        raise RecursionError("too deep")
    if isinstance(thing, str | bytes | int | bool | type(None) | np.random.Generator | types.FunctionType | type):
        return repr(thing) if not isinstance(thing, np.random.Generator) else "generator"
    if isinstance(thing, float | complex | np.generic):
        return (type(thing).__name__, repr(thing))
    if isinstance(thing, np.ndarray):
        if thing.dtype == object:
            return ("objects", thing.shape, tuple(facts(entry, depth + 1) for entry in thing.ravel()))
        return ("array", thing.dtype.str, thing.shape, thing.tobytes())
    if sp.issparse(thing):
        return ("sparse", facts(thing.tocsr().toarray()))
    if isinstance(thing, Ledger):
        return ("ledger", *_without_ids(thing.to_json()))
    if isinstance(thing, Mapping):
        return ("mapping", tuple((facts(k, depth + 1), facts(v, depth + 1)) for k, v in thing.items()))
    if isinstance(thing, list | tuple):
        return (type(thing).__name__, tuple(facts(entry, depth + 1) for entry in thing))
    if isinstance(thing, set | frozenset):
        return ("set", tuple(sorted(repr(facts(entry, depth + 1)) for entry in thing)))
    if dataclasses.is_dataclass(thing):
        fields = [(f.name, getattr(thing, f.name, None)) for f in dataclasses.fields(thing)]
        return (type(thing).__name__, tuple((name, facts(value, depth + 1)) for name, value in fields))
    held = dict(vars(thing)) if hasattr(thing, "__dict__") else {}
    for slot in getattr(type(thing), "__slots__", ()):
        if hasattr(thing, slot) and slot != "__weakref__":
            held[slot] = getattr(thing, slot)
    return (type(thing).__name__, tuple((name, facts(value, depth + 1)) for name, value in sorted(held.items())))


# ------------------------------------------------------------------------------------------------ tables

N = 160
RNG = np.random.default_rng(0)
FEATURES = {
    "amount": RNG.normal(size=N).tolist(),
    "count": RNG.integers(0, 5, N).tolist(),
    "job": RNG.choice(["clerk", "sales", "none"], N).tolist(),
    "flag": [bool(f) for f in RNG.integers(0, 2, N)],
}
LABELS = RNG.integers(0, 2, N).tolist()
SEX = RNG.choice(["F", "M"], N).tolist()
AGE = RNG.integers(18, 70, N).tolist()
IDS = [f"p{k}" for k in RNG.integers(0, 60, N)]
VICTIM = 17


class Hostile:
    """An object all of whose methods raise."""

    def _raise(self, *args, **kwargs):
        raise RuntimeError("the row was looked at")

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = __str__ = __repr__ = _raise
    __float__ = __int__ = __index__ = __bool__ = __len__ = __iter__ = __getitem__ = __array__ = _raise
    __complex__ = __format__ = __bytes__ = __contains__ = __add__ = __abs__ = _raise


class Loud(str):
    """Text whose methods raise."""

    def __eq__(self, other):
        raise RuntimeError("the row was looked at")

    def __hash__(self):
        raise RuntimeError("the row was looked at")

    __lt__ = strip = lower = __eq__
    __str__ = __repr__ = __hash__


CELLS = {
    "blank": None,
    "nan": math.nan,
    "inf": math.inf,
    "minus inf": -math.inf,
    "huge": 1e308,
    "minus huge": -1e308,
    "tiny": 5e-324,
    "text": "abc",
    "empty text": "",
    "space": "   ",
    "long text": "x" * 3_000_000,
    "long number": "9" * 100_000,
    "null byte": "a\0b",
    "surrogate": "\ud800",
    "number text": "1e5",
    "huge integer": 10**400,
    "odd integer": 2**53 + 1,
    "bytes": b"\xff\xfe",
    "date": datetime.date(2020, 1, 5),
    "aware time": datetime.datetime(2020, 1, 5, tzinfo=datetime.UTC),
    "late": np.datetime64("9999-12-31"),
    "not a time": np.datetime64("NaT"),
    "list": [1, [2, 3]],
    "array": np.zeros((2, 2)),
    "mapping": {"a": 1},
    "complex": 1 + 2j,
    "decimal": decimal.Decimal("sNaN"),
    "fraction": fractions.Fraction(1, 3),
    "na": pd.NA,
    "hostile": Hostile(),
    "loud": Loud("abc"),
    "numpy scalar": np.float32(3.5),
    "exception": ValueError,
}
FORMS = ["frame", "mapping", "rows", "object array"]
ALL = {"classes": [0, 1], "group_values": {"sex": ["F", "M"]}}
BOUNDS = {"amount": (-3, 3), "count": (0, 4), "job": ["clerk", "sales", "none"], "flag": [0, 1]}
PARITY = demographic_parity("sex", max_gap=0.1)


def table(form, features):
    if form == "frame":
        return pd.DataFrame({name: vector(column, form) for name, column in features.items()})
    if form == "mapping":
        return features
    rows = [list(row) for row in zip(*features.values(), strict=True)]
    if form == "rows":
        return rows
    found = np.empty((len(rows), len(features)), dtype=object)
    for place, row in enumerate(rows):
        for column, cell in enumerate(row):
            found[place, column] = cell
    return found


def replaced(column, cell):
    return [*column[:VICTIM], cell, *column[VICTIM + 1 :]]


def vector(values, form):
    if form != "frame":
        return list(values)
    if any(isinstance(cell, complex) for cell in values):  # complex storage is rejected: it counts as declared
        return pd.Series(list(values), dtype=object)
    try:
        return pd.Series(list(values))
    except UnicodeEncodeError:  # text that the text type of pandas cannot hold
        return pd.Series(list(values), dtype=object)


def rows(form="frame", cell=None, parts=(), ids=None):
    """Return a table with the victim's cells replaced in the named parts."""
    features = {name: replaced(column, cell) if "X" in parts else column for name, column in FEATURES.items()}
    return {
        "X": table(form, features),
        "y": vector(replaced(LABELS, cell) if "y" in parts else LABELS, form),
        "sensitive_features": {"sex": vector(replaced(SEX, cell) if "sex" in parts else SEX, form)},
        "privacy_ids": None if ids is None else vector(ids, form),
    }


def classifier(constraints=PARITY, *, epsilon=60.0, steps=3, **options):
    config = TrainingConfig(steps=steps, **options.pop("config", {}))
    bounds = options.pop("feature_bounds", None)
    return RateConstrainedClassifier(
        constraints, epsilon=epsilon, delta=1e-5, config=config, feature_bounds=bounds, random_state=3, **options
    )


def by_place(bounds, form):
    if bounds is None or form in ("frame", "mapping"):
        return bounds
    return {f"x{place}": entry for place, entry in enumerate(bounds.values())}


def same(run, first, others, monkeypatch, capsys):
    """Run on a table and on neighbours of it, with the releases of the first, and compare everything observable."""
    tape = Tape()
    before = observe(lambda: run(**first), monkeypatch, capsys, tape)
    assert tape.released or "planned" in run.__name__, before["outcome"]
    assert not str(before["outcome"][0]).endswith(("Error", "Input", "Type", "Combination")), before["outcome"]
    named = others if isinstance(others, Mapping) else dict(enumerate(others))
    found = {}
    for name, other in named.items():
        after = observe(lambda other=other: run(**other), monkeypatch, capsys, Tape(tape))
        found[name] = difference(before, after)
    assert not {name: differences for name, differences in found.items() if differences}


def fitted(**options):
    def fit(**data):
        data = {name: value for name, value in data.items() if value is not None}
        return classifier(**options).fit(data.pop("X"), data.pop("y"), **data)

    return fit


@pytest.fixture(autouse=True)
def no_seed_warning(monkeypatch):
    monkeypatch.setattr("ratewise.mechanisms.randomness._Said.seed", True)


@pytest.mark.parametrize("declared", [False, True], ids=["undeclared", "declared"])
@pytest.mark.parametrize("form", FORMS)
def test_one_adversarial_row_changes_nothing_observable(form, declared, monkeypatch, capsys):
    options = {**ALL, "feature_bounds": by_place(BOUNDS, form)} if declared else {}
    parts = [("X",), ("y",), ("sex",), ("X", "y", "sex")] if form == "frame" else [("X", "y", "sex")]
    others = {(name, *replace): rows(form, cell, replace) for name, cell in CELLS.items() for replace in parts}
    same(fitted(**options), rows(form), others, monkeypatch, capsys)


@pytest.mark.parametrize("declared", [False, True], ids=["undeclared", "declared"])
@pytest.mark.parametrize("rows_per_id", [None, 1, 3])
@pytest.mark.parametrize("weighting", ["id", "row"])
def test_one_adversarial_person_changes_nothing_observable(weighting, rows_per_id, declared, monkeypatch, capsys):
    options = {**ALL, "feature_bounds": BOUNDS} if declared else {}
    others = {}
    for cell in ("blank", "long text", "hostile", "huge", "list", "na", "odd integer"):
        others[cell] = rows(cell=CELLS[cell], parts=("X", "y", "sex"), ids=IDS)
    # another number of rows of the same person, too
    others["one row fewer"] = {
        name: {"sex": value["sex"].drop(index=VICTIM)} if name == "sensitive_features" else value.drop(index=VICTIM)
        for name, value in rows(ids=IDS).items()
    }
    run = fitted(rows_per_id=rows_per_id, id_weighting=weighting, **options)
    same(run, rows(ids=IDS), others, monkeypatch, capsys)


@pytest.mark.parametrize("form", ["array", "memmap", "sparse", "float32", "integers"])
def test_one_adversarial_row_of_an_array(form, tmp_path, monkeypatch, capsys):
    rng = np.random.default_rng(1)
    base = np.round(rng.normal(size=(N, 3)), 2) * (rng.random((N, 3)) < 0.7)
    if form == "integers":
        base = np.round(base * 10)

    def made(values, name):
        with np.errstate(all="ignore"):
            if form == "sparse":
                return sp.csr_array(values)
            if form == "float32":
                return values.astype(np.float32)
            if form == "integers":
                return values.astype(np.int64) if name == "first" else values
            if form == "memmap":
                path = tmp_path / name
                values.tofile(path)
                return np.memmap(path, dtype=np.float64, mode="r", shape=values.shape)
            return values

    shared = {"y": np.array(LABELS), "sensitive_features": {"sex": np.array(SEX)}}
    for options in ({}, {**ALL, "feature_bounds": (-2, 2)}):
        model = {"model": "linear"} if form == "sparse" else {}
        others = {}
        for cell in ("nan", "inf", "huge", "minus huge", "tiny", "odd integer"):
            other = base.copy()
            other[VICTIM] = CELLS[cell]
            others[cell] = {"X": made(other, cell), **shared}
        first = {"X": made(base, "first"), **shared}
        same(fitted(**options, **model), first, others, monkeypatch, capsys)


@pytest.mark.parametrize(
    "options",
    [
        {"constraints": None},
        {"constraints": equalized_odds("sex", max_gap=0.1)},
        {"constraints": [rate(1, where=group(sex="X")) <= 0.5], "classes": [0, 1], "group_values": {"sex": ["F", "X"]}},
        {"constraints": [rate(1) <= 0.5], "classes": [0, 1, 2]},
        {"config": {"rates": "soft", "temperature": 3.0}},
        {"config": {"histogram": "laplace"}},
        {"model": "linear"},
        {"neighbours": "replace_one"},
        {"neighbours": "add_or_remove"},
        {"epsilon": 0.5},
        {"ledger": "cap"},
        {"verbose": 1},
    ],
    ids=str,
)
def test_settings(options, monkeypatch, capsys):
    options = dict(options)
    capped = options.pop("ledger", None)

    def fit(**data):
        ledger = Ledger(cap=Budget(100.0, 1e-4), neighbours="zero_out") if capped else None
        return fitted(ledger=ledger, **options)(**data)

    others = [rows(cell=CELLS[cell], parts=("X", "y", "sex")) for cell in ("blank", "text", "hostile", "huge")]
    same(fit, rows(), others, monkeypatch, capsys)


def test_only_row_of_a_class_single_classes_and_empty_groups(monkeypatch, capsys):
    for options in ({}, ALL, {"classes": [0, 1, 2], "group_values": {"sex": ["F", "M", "X"]}}):
        for labels, sex in (
            ([*[0] * (N - 1), 1], SEX),
            ([0] * N, SEX),
            ([7] * N, SEX),
            (LABELS, ["F"] * (N - 1) + ["X"]),
            (LABELS, ["unseen"] * N),
        ):
            first = {**rows(), "y": pd.Series(labels), "sensitive_features": {"sex": pd.Series(sex)}}
            others = []
            for place in (0, N - 1):
                changed, changed_sex = pd.Series(labels, dtype=object), pd.Series(sex, dtype=object)
                changed[place], changed_sex[place] = None, None
                others.append({**first, "y": changed, "sensitive_features": {"sex": changed_sex}})
            same(fitted(**options), first, others, monkeypatch, capsys)


def test_numeric_group_columns(monkeypatch, capsys):
    older = rate(1, where=group(age=at_least(40)))
    constraint = [older <= 0.5]
    first = {**rows(), "sensitive_features": {"age": AGE}}
    others = [{**first, "sensitive_features": {"age": replaced(AGE, cell)}} for cell in CELLS.values()]
    for options in ({}, {"classes": [0, 1], "group_values": {"age": Numeric()}}):
        same(fitted(constraints=constraint, **options), first, others, monkeypatch, capsys)


def test_planned_events(monkeypatch, capsys):
    def planned(**data):
        X, y, ids = data.pop("X"), data.pop("y"), data.pop("privacy_ids")
        return (
            classifier().planned_events(X, y, **data)
            if ids is None
            else classifier().planned_events(X, y, privacy_ids=ids, **data)
        )

    for ids in (None, IDS):
        others = {name: rows(cell=cell, parts=("X", "y", "sex"), ids=ids) for name, cell in CELLS.items()}
        same(planned, rows(ids=ids), others, monkeypatch, capsys)


def neighbours_of(columns):
    """Return the columns and, for each cell, the columns with it in each of them and in all."""
    others = {}
    for cell, value in CELLS.items():
        changed = {name: replaced(column, value) for name, column in columns.items()}
        others.update({(cell, name): {**columns, name: changed[name]} for name in columns})
        others[cell, "all"] = changed
    return columns, others


@pytest.mark.parametrize("declared", [False, True], ids=["undeclared", "declared"])
def test_evaluation(declared, monkeypatch, capsys):
    options = ALL if declared else {}

    def evaluated(y, sex):
        return evaluate(PARITY, y, LABELS, sensitive_features={"sex": sex}, epsilon=60.0, random_state=1, **options)

    same(evaluated, *neighbours_of({"y": LABELS, "sex": SEX}), monkeypatch, capsys)


@pytest.mark.parametrize("aware", [False, True], ids=["blind", "aware"])
def test_postprocess(aware, monkeypatch, capsys):
    scores = np.linspace(0.01, 0.99, N).tolist()

    def ruled(scores, y, sex):
        return postprocess(
            scores,
            y,
            PARITY,
            sensitive_features={"sex": sex},
            epsilon=60.0,
            delta=1e-5,
            group_aware=aware,
            random_state=1,
        )

    same(ruled, *neighbours_of({"scores": scores, "y": LABELS, "sex": SEX}), monkeypatch, capsys)


@pytest.mark.parametrize("declared", [False, True], ids=["undeclared", "declared"])
def test_search(declared, monkeypatch, capsys):
    options = {**ALL, "feature_bounds": BOUNDS} if declared else {}

    def searched(X, y, sensitive_features, privacy_ids):
        space = {"config__l2": [0.0, 0.1]}
        choices = {"epsilon": 60.0, "delta": 1e-5, "mean_trials": 2.0, "random_state": 3}
        model = classifier(**options).set_params(random_state=None)
        return PrivateSearch(model, space, **choices).fit(X, y, sensitive_features=sensitive_features)

    changes = [("hostile", "X"), ("hostile", "y"), ("hostile", "sex")]
    changes += [(cell, "X", "y", "sex") for cell in ("blank", "inf", "hostile", "list")]
    others = {(cell, *parts): rows(cell=CELLS[cell], parts=parts) for cell, *parts in changes}
    same(searched, rows(), others, monkeypatch, capsys)


def written(folder):
    """Return what the files of a run hold, apart from random identifiers, checksums, and times of the description."""

    own = re.search(r'"id": "(\w+)"', (folder / "run.json").read_text())[1]  # it may have digits only

    def plain(content):
        marks = re.sub(r"\b(?=\d*[a-f])[0-9a-f]{12,64}\b", "id", content.decode().replace(own, "id"))
        return [line for line in marks.splitlines() if '"created"' not in line and '"changed"' not in line]

    found = []
    for path in sorted(path for path in folder.iterdir() if path.is_file()):
        if path.suffix == ".ratewise":
            _, header, numbers = path.read_bytes().split(b"\n", 2)
            found.append((path.name, plain(header), numbers))
        else:
            found.append((path.name, plain(path.read_bytes())))
    return found


@pytest.mark.parametrize("declared", [False, True], ids=["undeclared", "declared"])
@pytest.mark.parametrize("cell", ["", "secret", "-1e308", "a\0b"])
def test_run_folders(cell, declared, tmp_path, monkeypatch, capsys):
    from ratewise.data.schema import Category, Number, Schema
    from ratewise.mechanisms.randomness import UsedSeeds
    from ratewise.runs import RunFolder, Settings
    from ratewise.runs.run import session_for, train_run

    schema = Schema(
        {"amount": Number(-3, 3), "job": Category(["clerk", "sales"])},
        label="label",
        classes=["0", "1"],
        groups={"sex": Category(["F", "M"])},
    )
    texts = {"amount": FEATURES["amount"], "job": FEATURES["job"], "sex": SEX, "label": LABELS}
    first = pd.DataFrame({name: list(map(str, column)) for name, column in texts.items()})
    second = first.copy()
    second.loc[VICTIM] = cell
    settings = Settings(
        label="label",
        constraints=("demographic_parity(sex) <= 0.2",),
        epsilon=60.0,
        training={"steps": 3},
        groups=("sex",),
    )

    def run(frame):
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        monkeypatch.setattr("ratewise.runs.run.USED_SEEDS", UsedSeeds())  # another run, by its path the same
        wanted = schema if declared else None
        ready = session_for(frame, settings, wanted, seed=3)
        folder = RunFolder.create(
            tmp_path / "run", settings=settings, schema=wanted, plan=ready[1].plan, data="people.csv", command=["train"]
        )
        train_run(folder, *ready)
        return written(tmp_path / "run")

    same(run, {"frame": first}, [{"frame": second}], monkeypatch, capsys)


def _network_rows(cell, parts):
    features = np.round(np.random.default_rng(1).normal(size=(N, 3)), 2).astype(np.float32)
    with np.errstate(all="ignore"):
        features[VICTIM] = CELLS[cell] if "X" in parts else features[VICTIM]
    labels, sex = np.array(LABELS, dtype=object), np.array(SEX, dtype=object)
    if "y" in parts:
        labels[VICTIM], sex[VICTIM] = None, None
    return {"X": features, "y": labels, "sex": sex}


@pytest.mark.parametrize("way", ["estimator", "make_private"])
def test_networks(way, monkeypatch, capsys):
    torch = pytest.importorskip("torch")
    from ratewise.torch import MLP, TorchRateConstrainedClassifier, make_private

    choices = {"epsilon": 60.0, "delta": 1e-5, "random_state": 3, **ALL}

    def estimator(X, y, sex):
        config = TrainingConfig(steps=3, sampling_rate=0.5)
        model = TorchRateConstrainedClassifier(lambda: MLP(3, 2, (4,)), PARITY, config=config, **choices)
        model.fit(X, y, sensitive_features={"sex": sex})
        weights = [part.detach().numpy() for part in model.module_.parameters()]
        return weights, model.privacy_, model.ledger_, str(model.certificate_), model.history_

    def custom_loop(X, y, sex):
        torch.manual_seed(0)
        module, data = MLP(3, 2, (4,)), list(zip(X, y, sex, strict=True))
        loader = torch.utils.data.DataLoader(data, batch_size=20)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        model, optimizer, loader, criterion = make_private(
            module, optimizer, loader, constraints=PARITY, steps=3, **choices
        )
        for x, labels, cells in loader:
            optimizer.zero_grad()
            criterion(model(x), labels, cells).backward()
            optimizer.step()
        weights = [part.detach().numpy() for part in module.parameters()]
        return weights, str(optimizer.finish()), optimizer.ledger, optimizer.history.arrays()

    run = estimator if way == "estimator" else custom_loop
    parts = [("y",), *((cell, "X") for cell in ("nan", "inf", "minus huge")), ("inf", "X", "y")]
    others = {part: _network_rows(part[0], part) for part in parts}
    same(run, _network_rows("nan", ()), others, monkeypatch, capsys)


def blank_out(data, victims):
    """Return a table in which the given rows are blank."""
    gone = data["X"].index.isin(victims)
    sex = data["sensitive_features"]["sex"]
    return {
        **data,
        "X": data["X"].astype(object).mask(np.tile(gone[:, None], (1, data["X"].shape[1])), None),
        "y": data["y"].astype(object).mask(gone, None),
        "sensitive_features": {"sex": sex.astype(object).mask(gone, None)},
    }


@pytest.mark.parametrize("ids", [False, True], ids=["rows", "persons"])
@pytest.mark.parametrize("weighting", ["id", "row"])
@pytest.mark.parametrize(
    "config",
    [{}, {"rates": "soft", "temperature": 4.0}, {"histogram": "laplace"}, {"clip": 0.01}, {"clip": 1000.0}],
    ids=str,
)
@pytest.mark.parametrize("classes", [2, 5])
def test_every_release_is_within_its_sensitivity(classes, config, weighting, ids, monkeypatch, capsys):
    """A blank adds nothing to any vector that gets noise, and a unit at most the sensitivity of its noise."""
    labels = pd.Series(np.random.default_rng(2).integers(0, classes, N))
    options = {"classes": list(range(classes)), "config": config, "id_weighting": weighting}
    for declared in ({}, {"feature_bounds": BOUNDS, "group_values": {"sex": ["F", "M"]}}):
        for rows_per_id in (1, 3, None) if ids else (None,):
            first = {**rows(ids=IDS if ids else None), "y": labels}
            run = fitted(rows_per_id=rows_per_id, **options, **declared)
            tape = Tape()
            observe(lambda run=run, first=first: run(**first), monkeypatch, capsys, tape)
            victims = [k for k in range(N) if IDS[k] == IDS[VICTIM]] if ids else [VICTIM]
            other = Tape(tape)
            second = blank_out(first, victims)
            observe(lambda run=run, second=second: run(**second), monkeypatch, capsys, other)
            assert len(tape.private) == len(other.private) >= 8
            changes = 0
            for (mechanism, value), (_, neighbour) in zip(tape.private, other.private, strict=True):
                order = 1 if isinstance(mechanism, RoundedLaplaceMechanism) else 2
                moved = np.linalg.norm((value - neighbour).ravel(), order)
                assert moved <= mechanism.sensitivity * (1 + mechanism.slack)
                changes += moved > 0
                if mechanism.whole:  # rounding to the grid does nothing
                    assert np.array_equal(np.rint(value / mechanism.grid) * mechanism.grid, value)
            assert changes >= 2


def test_the_harness_sees_differences(monkeypatch, capsys):
    """A leak of any kind is found: an attribute, a warning, an exception, a size, a parameter of the noise."""

    def leaky(kind):
        def run(**data):
            model = fitted(**ALL, feature_bounds=BOUNDS)(**data)
            missing = data["X"].isna().any(axis=None)
            if kind == "attribute":
                model.n_missing_ = int(missing)
            elif kind == "warning" and missing:
                np.float64(1.0) / np.float64(0.0)
            elif kind == "output" and missing:
                print("missing")  # noqa: T201 - the leak
            elif kind == "error" and missing:
                raise ValueError("missing")
            return model

        return run

    for kind in ("attribute", "warning", "output", "error"):
        with pytest.raises(AssertionError):
            same(leaky(kind), rows(), [rows(cell=None, parts=("X",))], monkeypatch, capsys)
