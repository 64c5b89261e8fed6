"""One row decides how an argument is taken, which error is shown, or what a folder holds beside the releases."""

import datetime
import json
import re
import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from ratewise import Ledger, RateConstrainedClassifier, TrainingConfig, demographic_parity
from ratewise.data.cells import parse_text
from ratewise.data.files import read_table
from ratewise.estimators.postprocess import ScoreGrid
from ratewise.exceptions import InvalidInput
from ratewise.preprocessing.grids import ContinuousGrid

N = 300
VICTIM = 11
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 3)).round(2)
LABELS = RNG.integers(0, 2, N)
SEX = RNG.choice(["Female", "Male"], N).tolist()
IDS = RNG.integers(0, 80, N)


def fitted(table, y=LABELS, sex=SEX, **options):
    """Return what is seen of a fit apart from released values."""
    ledger = Ledger(neighbours="zero_out")
    linear = {"model": "linear"} if sp.issparse(table) else {}
    model = RateConstrainedClassifier(
        demographic_parity("sex", max_gap=0.2), epsilon=5.0, delta=1e-6, ledger=ledger, classes=[0, 1],
        group_values={"sex": ["Female", "Male"]}, config=TrainingConfig(steps=1), random_state=1, **linear,
    )  # fmt: skip
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            model.fit(table, y, sensitive_features=sex, **options)
            said = str(model.privacy_)
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
    return (
        said,
        ledger.events(),
        [str(warning.message) for warning in caught if "(said once)" not in str(warning.message)],
    )


# -------------------------------------------------------------------- lists of groups beside lists of names

TABLES = {
    "sparse": sp.csr_array(X),
    "columns": {name: X[:, place] for place, name in enumerate("abc")},
    "array": X,
    "rows": X.tolist(),
    "frame": pd.DataFrame(X, columns=list("abc")),
}


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("listed", [list, tuple])
@pytest.mark.parametrize("cell", [None, 7, "another"])
def test_one_entry_does_not_decide_whether_a_list_holds_names(kind, listed, cell):
    """If all entries were text they were taken for names of columns: an error, which quoted the first row."""
    other = [*SEX[:VICTIM], cell, *SEX[VICTIM + 1 :]]
    first, second = (fitted(TABLES[kind], sex=listed(sex)) for sex in (SEX, other))
    assert first == second
    assert "blank" in first[0]


@pytest.mark.parametrize("kind", TABLES)
def test_errors_about_a_list_of_another_length_quote_no_row(kind):
    shorter = SEX[1:]
    answers = [fitted(TABLES[kind], sex=sex) for sex in (shorter, [None, *shorter[1:]])]
    assert answers[0] == answers[1]
    assert "one entry per row" in answers[0][0]
    assert "Female" not in answers[0][0]


class Disguised:
    """A cell that tells nobody what it is."""

    @property
    def __class__(self):
        raise RuntimeError("the row was looked at")


class Endless(list):
    def __len__(self):
        raise RuntimeError("the row was looked at")


@pytest.mark.parametrize("cell", [Disguised, lambda: Endless(["Female"]), lambda: np.array(3), lambda: [[]]])
def test_an_entry_without_a_length_is_no_error(cell):
    """Entries of a list of groups were asked for their lengths."""
    first, second = (fitted(X, sex=[*SEX[:VICTIM], entry, *SEX[VICTIM + 1 :]]) for entry in (None, cell()))
    assert first == second
    assert "blank" in first[0]


# ------------------------------------------------------------------------------------------ masked cells


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_fraction_does_not_uncover_masked_cells(dtype):
    """A mask was kept in a column of whole numbers; one fraction made it floats, whose mask was not looked at."""
    grid = ContinuousGrid("a", 0.0, 10.0)
    whole, mask = np.arange(6), np.arange(6) % 2 == 1
    found = [
        grid.code(np.ma.array(whole, mask=mask)),
        grid.code(np.ma.array([*whole[:-1], 0.5], mask=mask, dtype=dtype)),
    ]
    assert found[0][:-1].tolist() == found[1][:-1].tolist()
    assert set(found[1][mask]) == {grid.missing_bin}


def test_masked_scores_are_no_scores():
    """The data below a mask are those of a person who was taken out, also if there is a column for each class."""
    grid, column = ScoreGrid(2), np.ma.array([0.1, 0.9, 0.8], mask=[False, True, False])
    table = np.ma.stack([1.0 - column, column], axis=1)
    assert grid.bins(grid.read(table)).tolist() == grid.bins(grid.read(column)).tolist()
    assert grid.bins(grid.read(table))[1] == grid.n_bins - 1


# ---------------------------------------------------------------------------------------- bounds of a grid


@pytest.mark.parametrize("bound", [1.2e308, -1.7e308, 1.7e308, -1.2e308, 0.0, 5e-324])
@pytest.mark.parametrize("cell", [np.inf, -np.inf, 1e308, 0.0])
def test_bounds_that_are_equal_hold_every_number(bound, cell):
    """Bounds are moved apart, and were moved to infinity: whether some row was there too was an error."""
    clf = RateConstrainedClassifier(classes=(0, 1), feature_bounds=(bound, bound), config=TrainingConfig(steps=1))
    rows = np.full((60, 1), bound)
    rows[VICTIM] = cell
    assert clf.fit(rows, LABELS[:60]).n_iter_ == 1


# ----------------------------------------------------------------------------------- labels of an index


class ByLabel(pd.Series):
    """A series whose slices are labels wherever its index holds fractions, as in pandas 2."""

    @property
    def _constructor(self):
        return ByLabel

    def __getitem__(self, key):
        if isinstance(key, slice) and key != slice(None) and self.index.dtype.kind != "i":
            return self.loc[key]
        return super().__getitem__(key)


def test_the_label_of_a_row_in_the_index_decides_nothing():
    """The index of one row turned a slice of rows into one of labels: an error, or the rows of others were lost."""
    plain = fitted(X, LABELS, {"sex": SEX})
    for index in (np.linspace(-1e6, 1e6, N), [*range(N - 1), 1e9], ["someone", *range(N - 1)]):
        y, sex = ByLabel(LABELS, index=index), ByLabel(SEX, index=index)
        assert fitted(X, y, {"sex": sex}) == plain
        assert fitted(X, y, {"sex": sex}, privacy_ids=ByLabel(np.arange(N), index=index))[1]


def test_the_index_decides_nothing_in_predictions():
    frame = pd.DataFrame(X, columns=list("abc"))
    model = RateConstrainedClassifier(None, epsilon=None, classes=[0, 1]).fit(frame, LABELS)
    index = np.linspace(-1e6, 1e6, N)
    columns = {name: ByLabel(column.to_numpy(), index=index) for name, column in frame.items()}
    assert np.array_equal(model.predict_proba(columns), model.predict_proba(frame))


# ------------------------------------------------------------------------------- the rows of persons


def test_a_run_folder_does_not_hold_the_number_of_rows_of_persons(tmp_path):
    """With ids, the number of rows is private; that of all persons but one is known, and so was that of the one."""
    from ratewise.cli.console import Table
    from ratewise.runs import Settings
    from ratewise.runs.run import session_for

    whole = pd.DataFrame({"a": X[:, 0], "label": LABELS, "person": IDS})
    settings = Settings(label="label", epsilon=5.0, delta=1e-6, training={"steps": 1}, privacy_id="person")
    found = []
    for name, frame in (("first", whole), ("second", whole.drop(index=np.flatnonzero(IDS[VICTIM] == IDS)[1:]))):
        plan = session_for(frame, settings, seed=1)[1].plan
        made = Table("people.csv", frame, {}, {}, ()).new_run(
            tmp_path / name, settings=settings, schema=None, plan=plan, command=["train"]
        )
        texts = [path.read_text() for path in sorted(made.path.iterdir()) if path.name != "run.json"]
        described = json.loads((made.path / "run.json").read_text())
        kept = {name: described[name] for name in described if name not in ("id", "created", "changed", "sha256")}
        texts.append(json.dumps(kept))
        found.append([re.sub(r"\b[0-9a-f]{12,64}\b", "", text) for text in texts])
    assert found[0] == found[1]


# --------------------------------------------------------------------------------------------- files


ALL_OPTIONS = {"sep": ";", "decimal": ".", "encoding": "utf-8", "header": True, "date_order": "dmy"}


def table_of(path, lines, given=ALL_OPTIONS):
    """Return a text table that is read with options given."""
    from ratewise.cli.console import Table

    path.write_text("a;b\n" + "".join(f"{line}\n" for line in lines))
    return Table.read(str(path), given)


@pytest.mark.parametrize(("place", "line"), [(3, "5,678;1"), (-1, "total;1")])
def test_a_statement_says_what_one_row_decides_about_the_reading_of_others(place, line, tmp_path):
    """A first "5,678" decides what the last "1,234" is, and the last row whether it is one, whatever options say."""
    lines = ["7;1"] * 350 + ["1,234;2", "8;1"]
    changed = list(lines)
    changed[place] = line
    tables = [table_of(tmp_path / "table.csv", each) for each in (lines, changed)]
    read = [(len(table.frame), parse_text(table.frame["a"])[350]) for table in tables]
    assert read[0] != read[1]
    for table in tables:
        assert table.outside == ("how the file is written (marks of thousands, lines around the table)",)


def test_a_date_of_one_row_is_not_in_the_statement(tmp_path):
    given = {name: value for name, value in ALL_OPTIONS.items() if name != "date_order"}
    found = [table_of(tmp_path / "table.csv", ["7;x"] * 20 + [line], given).outside for line in ("8;x", "8;3.4.2020")]
    assert found == [("how the file is written (order of dates, marks of thousands, lines around the table)",)] * 2


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "cp1252"])
def test_bytes_of_one_row_are_no_error_in_a_declared_encoding(encoding, tmp_path):
    path = tmp_path / "table.csv"
    path.write_bytes(b"a;b\n7;x\n8;\x81\xff\xd8\n")
    frame = read_table(str(path), **{**ALL_OPTIONS, "encoding": encoding}).frame
    assert list(frame.columns) == ["a", "b"]
    assert frame["b"][0] == "x"


@pytest.mark.parametrize("cell", ["n/a", "5;5", "3"])
def test_what_is_said_about_a_private_file_counts_no_cells(cell, tmp_path, capsys):
    """Whether a row has a word in place of a number, or more fields than there are names, is not shown."""
    table_of(tmp_path / "table.csv", ["7;1"] * 20 + [f"8;{cell}", "7;1"])
    assert capsys.readouterr().err == f"reading {tmp_path / 'table.csv'}\n"


def test_the_values_of_a_label_are_not_counted(tmp_path):
    """With --missing for values of other rows, an error about too many values told whether the victim has another."""
    from click.testing import CliRunner

    from ratewise.cli.app import cli

    said = set()
    for salary in (30, 60):
        frame = pd.DataFrame({"x": range(2000), "salary": [f"s{k % 60}" for k in range(1999)] + [f"s{salary}"]})
        frame.to_csv(tmp_path / "people.csv", index=False)
        words = ["train", str(tmp_path / "people.csv"), "--label", "salary", "--out", str(tmp_path / "run")]
        words += [word for value in range(10) for word in ("--missing", f"s{value}")]
        words += ["--epsilon", "60", "--ledger", str(tmp_path / "ledger.json"), "--ledger-cap", "0.001"]
        refused = CliRunner().invoke(cli, words)  # for lack of budget, so the ledger records nothing
        said.add((refused.exit_code, re.sub(r"reading .*", "", refused.output)))
    assert len(said) == 1
    assert "cap" in said.pop()[1]


@pytest.mark.parametrize("cell", ["O'Neil", '"O\'Neil, Jr"', '"\'"', "'O, Neil'", "x"])
def test_an_apostrophe_in_a_row_of_an_arff_file_changes_no_other_row(cell, tmp_path):
    path = tmp_path / "table.arff"
    rows = ['"x, y",1', f"{cell},2", "'u, v',3"]
    path.write_text("\n".join(["@relation r", "@attribute a string", "@attribute b numeric", "@data", *rows]))
    found = read_table(str(path)).frame
    assert found["a"].tolist()[::2] == ["x, y", "u, v"]
    assert found["b"].tolist() == [1, 2, 3]


@pytest.mark.parametrize("cell", ['"\\ud800"', "9" * 5000, "-" + "9" * 5000, "1e999", '{"a": [1]}', "null"])
@pytest.mark.parametrize("listed", [False, True])
def test_no_value_of_a_row_of_a_json_file_is_an_error(cell, listed, tmp_path):
    path = tmp_path / "table.json"
    rows = [f'{{"a": {a}, "b": {b}}}' for a, b in ((1, '"x"'), (cell, cell), (3, '"z"'))]
    path.write_text(f"[{', '.join(rows)}]" if listed else "\n".join(rows))
    found = read_table(str(path)).frame
    assert parse_text(found["a"])[::2].tolist() == ["1", "3"]
    assert parse_text(found["b"])[::2].tolist() == ["x", "z"]


def test_warnings_of_excel_do_not_quote_rows(tmp_path):
    """A number that is formatted as a date and is none was shown, with its place."""
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in (["when", "b"], *([datetime.datetime(2020, 1, 1), k] for k in range(4))):
        book.active.append(row)
    cell = book.active.cell(4, 1)
    cell.value, cell.number_format = 123456789, "yyyy-mm-dd"
    book.save(tmp_path / "table.xlsx")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = read_table(str(tmp_path / "table.xlsx")).frame
    assert parse_text(found["when"])[[0, 1, 3]].tolist() == ["2020-01-01"] * 3


# ----------------------------------------------------------------------------- tables that compute themselves


@pytest.mark.parametrize("ids", [None, "person"])
def test_errors_of_dask_do_not_quote_rows(ids):
    """A task of the table raises an error for a cell, such as for text that is no number; its message is not shown."""
    dask = pytest.importorskip("dask")
    frames = pytest.importorskip("dask.dataframe")
    people = pd.DataFrame({"a": ["1.5"] * N, "label": LABELS, "sex": SEX, "person": IDS}).astype({"a": object})
    people.loc[VICTIM, "a"] = "the secret"
    with dask.config.set({"scheduler": "synchronous", "dataframe.convert-string": False}):
        table = frames.from_pandas(people, npartitions=2)
        table["a"] = table["a"].map_partitions(lambda column: column.astype(float), meta=("a", "f8"))
        answer = fitted(table, "label", ["sex"], privacy_ids=ids)[0]
    assert answer.startswith(InvalidInput.__name__)
    assert "secret" not in answer
    assert "ValueError" in answer


@pytest.mark.parametrize("cell", ["x" * 5_000_000, "\n" * 3_000_000, "a\nb"], ids=["long", "lines", "line"])
@pytest.mark.parametrize("place", [0, VICTIM])
def test_the_text_of_a_row_of_a_csv_data_set_is_no_error(cell, place, tmp_path):
    """Arrow reads a file in blocks, and failed for a row longer than one, or with a line break where one ends."""
    pa = pytest.importorskip("pyarrow")
    dataset = pytest.importorskip("pyarrow.dataset")
    answers = []
    for text in ("z", cell):
        people = pd.DataFrame({"label": LABELS, "a": "z", "sex": SEX})
        people.loc[place, "a"] = text
        people.to_csv(tmp_path / "people.csv", index=False)
        schema = pa.schema([("label", pa.int64()), ("a", pa.string()), ("sex", pa.string())])
        table = dataset.dataset(tmp_path / "people.csv", format="csv", schema=schema)
        answers.append(fitted(table, "label", ["sex"]))
    assert answers[0] == answers[1]
    assert "blank" in answers[0][0]
