"""Further ways in which one row decides how other rows are read, or shows in a warning or an error."""

import copy
import datetime
import decimal
import itertools
import math
import types
import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch

from ratewise import InvalidInput, RateConstrainedClassifier, TrainingConfig, demographic_parity, postprocess
from ratewise.constraints.domain import Domain
from ratewise.data.cells import CellFormat, cell_kinds, parse_number, parse_text
from ratewise.data.files import read_table
from ratewise.data.table import code_ids, id_units, raw_columns, read_features, read_vector, row_units
from ratewise.distributed.partitions import join_by_id
from ratewise.exceptions import LedgerError
from ratewise.models.additive import Problem
from ratewise.models.linear import SparseEngine, prepare_sparse
from ratewise.preprocessing.discovery import ColumnDeclaration
from ratewise.torch import DatasetRows, TensorRows, TorchRateConstrainedClassifier, Trainer, make_private
from ratewise.torch.clipping import clipping_slack
from ratewise.torch.engine import Objective, TorchEngine
from ratewise.torch.trainer import network_plan

pa = pytest.importorskip("pyarrow")

# ------------------------------------------------------------------------------------ storage of cells


def readings(column, cell_format):
    return [
        *parse_number(column, cell_format).values,
        *parse_text(column, cell_format),
        *cell_kinds(column, cell_format),
    ]


@pytest.mark.parametrize(
    ("word", "stored"),
    [
        ("1900-01-01", np.array(["1900-01-01", "2020-02-29"], "M8[ns]")),
        ("1 Jan 1900", np.array(["1900-01-01", "2020-02-29"], "M8[D]")),
        ("1900-01-01 06:30:00", np.array(["1900-01-01T06:30", "2020-02-29"], "M8[s]")),
        ("0 days", np.array([0, 86_400], "m8[s]")),
        ("00:00:00", [datetime.time(0), datetime.time(1)]),
    ],
)
def test_times_that_mean_missing_do_so_in_every_storage(word, stored):
    """One word turns a column of dates into text: what is declared to mean missing must not depend on it."""
    declared = CellFormat(missing=(word,))
    texts = parse_text(stored).tolist()
    assert readings(stored, declared) == pytest.approx(readings(texts, declared), nan_ok=True)
    assert readings(list(pd.Series(stored)), declared) == pytest.approx(readings(texts, declared), nan_ok=True)
    assert parse_text(texts, declared).tolist() == ["", texts[1]]


def test_dates_beyond_the_calendar_of_python_are_read_alike_in_every_storage():
    stored = pd.Series(np.array(["20000-01-01", "-5000-03-01", "2020-02-29"], "M8[s]"))
    mixed = pd.Series([*stored, "a word"], dtype=object)
    assert parse_number(mixed).values[:3].tolist() == parse_number(stored).values.tolist()
    assert parse_text(mixed)[:3].tolist() == parse_text(stored).tolist()


@pytest.mark.parametrize("kind", [pd.Series, torch.tensor, lambda row: memoryview(np.array(row))])
@pytest.mark.parametrize("odd", [["x", "y"], np.array(["x", "y"]), np.array([None, "y"])], ids=type)
def test_rows_of_any_kind_keep_their_numbers_beside_text(kind, odd):
    """As text of single precision 0.1 would be another number."""
    rows = [kind(np.array([0.1, 0.2], np.float32)) for _ in range(4)]
    for columns in zip(read_features(rows).columns, read_features([*rows, odd]).columns, strict=True):
        first, second = (parse_number(column).values[:4].tolist() for column in columns)
        assert first == second


def test_masked_cells_are_missing_in_every_shape():
    """The data below a mask are those of a person who was taken out."""
    masked = np.ma.masked_array([[1.0, 2.0], [3.0, 4.0]], mask=[[False, False], [True, True]])
    columns = [column for table in (masked, list(masked)) for column in read_features(table).columns]
    columns += [raw_columns(masked[:, :1], 2)["group"], read_vector(masked[:, :1].ravel(), 2, "y")]
    assert all(parse_text(column)[1] == "" for column in columns)


@pytest.mark.parametrize("kind", [np.int8, np.bool_, np.float32])
def test_repeated_entries_of_a_sparse_row_do_not_depend_on_the_type_of_others(kind):
    def matrix(last):
        entries = np.concatenate([np.array([100.1, 100.2, 1]).astype(kind), last])
        return sp.coo_matrix((entries, ([0, 0, 1, 2], [0, 0, 1, 0])), shape=(3, 2))

    first, second = (read_features(matrix(last)).sparse.toarray() for last in (np.array([1], kind), np.array([300.5])))
    assert first[:2].tolist() == second[:2].tolist()


def test_partitions_of_other_types_are_joined_cell_by_cell():
    """Rows of an id are brought together: the type of one partition must not change or refuse cells of another."""
    stamps = {unit: pd.ArrowDtype(pa.timestamp(unit)) for unit in ("s", "ns")}
    columns = {
        "integers": pd.Series([2**60 + 1, None], dtype=pd.ArrowDtype(pa.int64())),
        "floats": pd.Series([0.1, None], dtype=pd.ArrowDtype(pa.float32())),
        "unsigned": pd.Series([1, 2**64 - 1], dtype="uint64"),
        "seconds": pd.Series(np.array(["200000-01-01", "3000-01-01"], "M8[s]")),
        "nanoseconds": pd.Series(np.array(["2000-01-01", "2020-02-29"], "M8[ns]")),
        "arrow seconds": pd.Series(np.array(["3000-01-01", "2020-02-29"], "M8[s]")).astype(stamps["s"]),
        "arrow nanoseconds": pd.Series([datetime.datetime(2020, 1, 1), None], dtype=stamps["ns"]),
        "durations": pd.Series(np.array([10**12, 5], "m8[s]")),
        "short durations": pd.Series(np.array([1, 5], "m8[ns]")),
        "decimals": pd.Series([decimal.Decimal("1.1"), None], dtype=pd.ArrowDtype(pa.decimal128(5, 2))),
        "zones": pd.Series(pd.to_datetime(["2020-01-01", "2021-06-01"])).dt.tz_localize("Europe/Berlin"),
        "categories": pd.Series(["a", None], dtype="category"),
        "sparse": pd.Series(pd.arrays.SparseArray([0.0, 0.1])),
        "text": pd.Series(["a", "1"]),
    }
    for names in itertools.permutations(columns, 2):
        pieces = [
            (pd.DataFrame({"v": columns[name]}), np.arange(2 * k, 2 * k + 2, dtype=np.uint64), np.arange(2) + 2 * k)
            for k, name in enumerate(names)
        ]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            joined = join_by_id(pieces).frame["v"]
        apart = [parse_text(columns[name]).tolist() for name in names]
        assert parse_text(joined).tolist() == [*apart[0], *apart[1]], names
        numbers = [parse_number(columns[name]).values for name in names]
        np.testing.assert_array_equal(parse_number(joined).values, np.concatenate(numbers), str(names))


# ------------------------------------------------------------------------------- warnings and errors


def test_a_huge_weight_of_a_row_does_not_show():
    rng = np.random.default_rng(0)
    x, weights = rng.normal(size=(60, 1)), np.ones(60)
    weights[7] = 1e308
    model = RateConstrainedClassifier(
        classes=(0, 1), feature_bounds=(-3.0, 3.0), config=TrainingConfig(steps=2, max_sample_weight=1e-3)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(x, x[:, 0] > 0, sample_weight=weights)


class Loud(torch.Tensor):
    """A tensor of the user's own, which cannot be put beside others."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.stack:
            raise RuntimeError
        return super().__torch_function__(func, types, args, kwargs)


class Items(torch.utils.data.Dataset):
    """Rows with inputs as lists of numbers, but for one."""

    def __init__(self, place, odd):
        self.place, self.odd = place, odd

    def __len__(self):
        return 9

    def __getitem__(self, row):
        if row == self.place and isinstance(self.odd, Exception):
            raise self.odd
        return self.odd if row == self.place else [0.5, 1.7], row % 2


@pytest.mark.parametrize(
    "odd",
    [
        *([1, 0], [True, False], [1j, 0.0], [1.0, 2.0, 3.0], [], "abc", None, OSError("no such file")),
        *(torch.zeros(2).to_sparse(), torch.zeros(2, device="meta"), torch.ones(2, requires_grad=True) * 2),
        Loud([0.5, 1.7]),
    ],
    ids=lambda odd: f"{type(odd).__name__} {getattr(odd, 'layout', '')}",
)
@pytest.mark.parametrize("place", [0, 4, 8])
def test_one_item_of_a_data_set_decides_neither_shape_nor_type_of_the_others(odd, place):
    """Whole numbers in the first item would cut off the digits of all others; an item that fails is a blank row."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batch = DatasetRows(Items(place, odd), Domain((0, 1), {}, other=True)).take(np.arange(9))
    kept = np.arange(9) != place
    assert batch.x[kept].tolist() == [torch.tensor([0.5, 1.7]).tolist()] * 8
    assert batch.labels[kept].tolist() == [row % 2 for row in range(9) if row != place]


# ------------------------------------------------------------------------------------ places in a batch


class People(torch.utils.data.Dataset):
    def __init__(self, x, labels):
        self.x, self.labels = x, labels

    def __len__(self):
        return len(self.x)

    def __getitem__(self, row):
        return self.x[row], self.labels[row]


@pytest.mark.parametrize("way", ["estimator", "make_private"])
def test_a_second_row_of_a_blank_id_leaves_other_ids_in_their_places(way):
    """Sums in single precision depend on places by rounding: bit by bit, a blank id adds nothing, whatever its rows."""
    torch.manual_seed(0)
    start = torch.nn.Sequential(torch.nn.Linear(33, 41), torch.nn.Tanh(), torch.nn.Linear(41, 2))
    x, labels = 10 * torch.randn(301, 33), [None, *(row % 2 for row in range(299)), None]
    found = []
    for rows in (300, 301):
        ids = [f"p{row % 300}" for row in range(rows)]
        settings = TrainingConfig(steps=1, sampling_rate=1.0, learning_rate=1.0)
        options = {"epsilon": None, "delta": 1e-5, "classes": (0, 1), "rows_per_id": 2}
        if way == "estimator":
            model = TorchRateConstrainedClassifier(start, config=settings, **options)
            module = model.fit(x[:rows], labels[:rows], privacy_ids=ids).module_
        else:
            module = copy.deepcopy(start)
            optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
            model, optimizer, loader, criterion = make_private(
                module, optimizer, People(x[:rows], labels[:rows]), config=settings, privacy_ids=ids, **options
            )
            for inputs, classes, cells in loader:
                criterion(model(inputs), classes, cells).backward()
                optimizer.step()
        found.append(torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()]))
    assert torch.equal(*found)
    assert not torch.equal(found[0], torch.cat([parameter.detach().reshape(-1) for parameter in start.parameters()]))


# ---------------------------------------------------------------------------------- memory of a module


class Clock:
    """An object of the user's own."""

    def __init__(self):
        self.ticks = 0


class Remembers(torch.nn.Module):
    """Fails on ids beyond a frozen table, and turns its logits round after 6 calls, which it counts in some object."""

    def __init__(self, kept, count):
        super().__init__()
        self.table, self.head, self.kept, self.count = (torch.nn.Embedding(5, 4), torch.nn.Linear(4, 2), kept, count)
        self.table.requires_grad_(False)

    def forward(self, x):
        return self.head(self.table(x[:, 0].long())) * (1.0 if self.count(self.kept) < 6 else -1.0)


def _tick(kept):
    kept.ticks += 1
    return kept.ticks


def _add(kept):
    kept += 1
    return int(kept)


def _append(kept):
    kept["calls"].append(1)
    return len(kept["calls"])


@pytest.mark.parametrize(
    ("kept", "count"),
    [
        (Clock, _tick),
        (itertools.count, next),
        (lambda: {"calls": []}, _append),
        (lambda: np.zeros(()), _add),
        (lambda: torch.zeros(()), _add),
    ],
    ids=["object", "iterator", "nested", "array", "tensor"],
)
def test_calls_that_search_for_a_failing_row_leave_no_trace_in_the_module(kept, count):
    found = []
    for failing in (True, False):
        torch.manual_seed(0)
        x, labels = torch.ones(5, 1), np.arange(5) % 2
        x[4], labels[4] = (1e6, labels[4]) if failing else (0.0, -1)
        engine = TorchEngine(Remembers(kept(), count), TensorRows(x, labels), Objective(2, None))
        sums = [engine.sums(np.arange(5), clip=1.0).gradient for _ in range(8)]
        found.append(torch.stack([torch.cat([part.reshape(-1) for part in each]) for each in sums]))
    assert torch.equal(*found)
    assert not torch.equal(found[0][0], found[0][-1])  # so that the number of calls matters


# ------------------------------------------------------------------------------------------ text tables


@pytest.mark.parametrize(
    ("cells", "options"),
    [
        (["0", "1", "unknown"], {}),
        (["5%", "12.5 %", "n/a"], {}),
        (["1,5 %", "2,25", "7,5€"], {"sep": ";", "decimal": ","}),
        (["2020-01-05", "?", "2021-02-03"], {}),
        (["0001-01-01 00:00:00.000001", "2020-01-05"], {}),
        (["31/12/2020", "01/02/2021", "-"], {"date_order": "dmy"}),
        (["999", "999.0", "1.5"], {"missing": ["999"]}),
        (["true", "false", "None"], {}),
    ],
    ids=lambda value: repr(value) if isinstance(value, list) else "",
)
def test_a_word_in_a_file_changes_no_other_cell(cells, options, tmp_path):
    """Whether all cells of a column are numbers or dates is decided by all rows, and must not decide what they mean."""
    sep = options.get("sep", ",")
    found = []
    for last in ("", "a word"):
        lines = [sep.join(("value", "y")), *(f"{cell}{sep}1" for cell in (*cells, *cells, last))]
        (tmp_path / "people.csv").write_text("\n".join(lines) + "\n")
        given = {"sep": sep, "decimal": ".", "encoding": "utf-8", "header": True, **options}
        column = read_table(str(tmp_path / "people.csv"), **given).frame["value"]
        found.append(([*parse_text(column)][:-1], [*parse_number(column).values][:-1]))
    (texts, numbers), (others, their_numbers) = found
    assert texts == others
    np.testing.assert_array_equal(numbers, their_numbers)


def test_a_long_text_in_a_file_is_no_error(tmp_path):
    (tmp_path / "people.csv").write_text("t,y\na,1\n" + "x" * 200_000 + ",0\nb,1\n")
    assert parse_text(read_table(str(tmp_path / "people.csv")).frame["t"]).tolist()[::2] == ["a", "b"]


@pytest.mark.parametrize("line", ['1,"secret', "1,secret,3,4", "secret"])
def test_errors_of_damaged_files_do_not_quote_rows(line, tmp_path):
    dataset = pytest.importorskip("pyarrow.dataset")
    (tmp_path / "a.csv").write_text("x,t,y\n0.5,word,0\n")
    (tmp_path / "b.csv").write_text(f"x,t,y\n0.5,private,0\n{line}\n0.25,private,1\n")
    table = dataset.dataset(str(tmp_path), format="csv")
    with pytest.raises(InvalidInput, match="cannot read file 2 of the data set") as caught:
        RateConstrainedClassifier(classes=(0, 1)).fit(table, "y")
    assert "secret" not in str(caught.value)
    assert "private" not in str(caught.value)
    assert caught.value.__suppress_context__


# ------------------------------------------------------------- variants that found nothing, kept as tests


class Tied(torch.nn.Module):
    """An embedding with a padding id, whose weight is that of a layer too."""

    def __init__(self):
        super().__init__()
        self.table, self.back = torch.nn.Embedding(7, 5, padding_idx=0), torch.nn.Linear(5, 7, bias=False)
        self.back.weight, self.head = self.table.weight, torch.nn.Linear(7, 2)

    def forward(self, x):
        return self.head(torch.tanh(self.back(self.table(x.long()).mean(1))))


class TwoWays(torch.nn.Module):
    """A weight that is used by its layer, on several positions, and by a function."""

    def __init__(self):
        super().__init__()
        self.body, self.head = torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)

    def forward(self, x):
        inner = torch.tanh(self.body(x.reshape(-1, 2, 4)))
        return self.head(torch.nn.functional.linear(inner, self.body.weight).mean(1))


class Convolved(torch.nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.body, self.norm = torch.nn.Conv1d(2, 4, 3, **options), torch.nn.GroupNorm(2, 4)
        self.head = torch.nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.norm(self.body(x.reshape(-1, 2, 4))).square().mean(-1))


NETWORKS = {
    "tied": Tied,
    "two ways": TwoWays,
    "groups": lambda: Convolved(padding=2, groups=2),
    "dilated": lambda: Convolved(padding=2, dilation=2),
    "reflected": lambda: Convolved(padding=1, padding_mode="reflect"),
    "normalised weight": lambda: torch.nn.Sequential(
        torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(8, 4)), torch.nn.Linear(4, 2)
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_rows_of_all_magnitudes_add_at_most_the_clip(name):
    torch.manual_seed(0)
    rng = np.random.default_rng(1)
    module, rows = NETWORKS[name](), 16
    clean = torch.randint(0, 7, (rows, 8)).float() if name == "tied" else torch.randn(rows, 8)
    labels, cells = np.arange(rows) % 2, np.zeros(rows, dtype=np.int64)

    def sums(row, label, cell):
        x, classes, places = clean.clone(), labels.copy(), cells.copy()
        x[5], classes[5], places[5] = torch.tensor(row, dtype=torch.float32), label, cell
        engine = TorchEngine(module, TensorRows(x, classes, places), Objective(2, 1))
        found = engine.sums(np.arange(rows), clip=1.0)
        return torch.cat([part.double().reshape(-1) for part in found.gradient]), found.histogram

    gradient, histogram = sums(np.zeros(8), -1, -1)
    odd = [0.0, 1e-45, 1e-30, -1e10, 1e19, 3e38, -7.0, 1e18, math.inf, math.nan]
    for trial in range(24):
        size = rng.normal() * 10.0 ** rng.integers(-30, 30)
        row = [rng.choice(odd, 8), size * rng.normal(size=8), np.resize([size, -size, 0.7 * size], 8)][trial % 3]
        moved, counted = sums(row, 1, 0)
        assert float((moved - gradient).norm()) <= 1.0 + clipping_slack(rows)
        assert np.abs(counted - histogram).sum() <= 1.0


@pytest.mark.parametrize("persons", [False, True])
def test_sparse_rows_of_all_magnitudes_add_at_most_the_clip(persons):
    rng = np.random.default_rng(0)
    odd, names = [0.0, 1e-320, 1e-160, 1.0, -1e30, 1e160, 1.7e308, math.inf, math.nan], list("abcdef")
    for trial in range(40):
        bounds = {name: ColumnDeclaration(bounds=(0.0, 10.0 ** rng.integers(-300, 300))) for name in names}
        x, y, cells = rng.normal(size=(40, 6)), rng.integers(0, 2 + trial % 2, 40), rng.integers(-1, 2, 40)
        costs, clip = (
            rng.normal(size=(2, 2 + trial % 2)) * 10.0 ** rng.integers(-5, 20),
            10.0 ** rng.integers(-50, 20),
        )
        theta = rng.normal(size=7 * (1 if trial % 2 == 0 else 3)) * 10.0 ** rng.integers(-3, 28)
        rows, found = [3, 4, 5] if persons else [3], []
        for blank in (False, True):
            x[rows] = 0.0 if blank else rng.choice(odd, (len(rows), 6))
            labels, places = y.copy(), cells.copy()
            if blank:
                labels[rows] = places[rows] = -1
            units = row_units(40)
            if persons:
                units = id_units(*code_ids(np.arange(40) // 3), 2, "id", labels >= 0)
            with np.errstate(all="ignore"):
                matrix = prepare_sparse(sp.csr_array(x), bounds, names)
                engine = SparseEngine(matrix, Problem(labels, places, 2 + trial % 2, 2), units, 1.0, trial % 3 > 0)
                found.append(engine.sums(np.arange(units.n_units), theta, costs, clip))
        moved = np.linalg.norm((found[0].gradient - found[1].gradient) / clip)
        assert moved <= 1.0 + engine.slack(40)
        assert np.abs(found[0].histogram - found[1].histogram).sum() <= 1.0


def reachable(root):
    """Yield the arrays and texts that an object refers to, by attributes, entries and closures."""
    seen, waiting = set(), [root]
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, type | types.ModuleType):
            continue
        seen.add(id(one))
        if isinstance(one, np.ndarray | str | bytes):
            yield one
        if isinstance(one, dict):
            waiting += [*one, *one.values()]
        elif isinstance(one, list | tuple | set | frozenset):
            waiting += one
        waiting += getattr(one, "__dict__", {}).values()
        waiting += [cell.cell_contents for cell in getattr(one, "__closure__", None) or ()]


def test_a_fitted_model_refers_to_no_row():
    rng = np.random.default_rng(0)
    x, y, sex = rng.normal(size=(201, 2)), rng.integers(0, 2, 201), rng.choice(["F", "M"], 201)
    ids = [f"id of {row // 2}" for row in range(201)]
    given = {"sensitive_features": pd.DataFrame({"sex": sex}), "privacy_ids": ids}
    gap = demographic_parity("sex", max_gap=0.2)
    model = RateConstrainedClassifier(gap, config=TrainingConfig(steps=3), epsilon=8.0).fit(x, y, **given)
    rule = postprocess(rng.random(201), y, gap, epsilon=8.0, delta=1e-5, group_aware=True, rows_per_id=2, **given)
    for fitted in (model, rule):
        for found in reachable(fitted):
            if isinstance(found, np.ndarray):
                assert 201 not in found.shape
                assert not np.isin(x, found.astype(object)).any()
            else:
                assert "id of" not in str(found)


@pytest.mark.parametrize("bounds", [(-8e307, 8e307), (0.0, 1.7e308), (-1e-320, 1e-320), (0.0, 5e-324)])
def test_extreme_values_within_extreme_bounds_do_not_show(bounds):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 1)), rng.integers(0, 2, 40)
    x[:8, 0] = [0.0, 1.7e308, -1.7e308, math.inf, -math.inf, math.nan, 1e-323, 5e-324]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        RateConstrainedClassifier(classes=(0, 1), feature_bounds=bounds, config=TrainingConfig(steps=2)).fit(x, y)


# --------------------------------------------------------------------------------------- checkpoints


def test_one_run_alone_goes_on_from_a_checkpoint(tmp_path):
    """Two runs from one file would each take the steps that remain, and each state the budget of one."""
    x, labels = torch.randn(40, 3), np.arange(40) % 2
    settings = TrainingConfig(steps=6, sampling_rate=0.5)
    plan = network_plan(40, settings, epsilon=2.0, delta=1e-5, constrained=False)

    def trainer():
        options = {"config": settings, "n_classes": 2, "checkpoint": tmp_path / "run.npz", "checkpoint_every": 2}
        return Trainer(torch.nn.Linear(3, 2), TensorRows(x, labels), plan, **options)

    steps = trainer().steps()
    next(steps)
    steps.close()
    one, other = trainer(), trainer()
    assert one.resume()
    assert other.resume()
    one.run()
    weight = other.module.weight.clone()
    with pytest.raises(LedgerError, match="one run alone can go on from a checkpoint"):
        other.run()
    assert torch.equal(other.module.weight, weight)
    late = trainer()
    assert late.resume()
    late.run()  # takes no step: they are all on record
    assert torch.equal(late.module.weight, one.module.weight)
