"""Each command as a person would use it, in one process; see test_cli_process.py for real ones."""

import gzip
import json
import os
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from ratewise import Ledger
from ratewise.cli.app import cli
from ratewise.cli.toml import to_toml
from ratewise.runs import RunFolder
from ratewise.runs.resumable import read_checkpoint
from ratewise.schema import Category, Number, Schema

SCHEMA = Schema(
    {"job": Category(["sales", "clerk"]), "age": Number(17, 90)},
    label="rich",
    classes=["no", "yes"],
    groups={"sex": Category(["F", "M"]), "race": Category(["A", "B"])},
)
PARITY = "demographic_parity(sex) <= 0.1"


def people(rows, seed):
    rng = np.random.default_rng(seed)
    age, job = rng.uniform(17, 90, rows).round(1), rng.choice(["sales", "clerk"], rows)
    sex, race = rng.choice(["F", "M"], rows), rng.choice(["A", "B"], rows)
    rich = (age - 50) / 10 + (job == "clerk") + (sex == "M") + rng.logistic(size=rows) > 0.5
    return pd.DataFrame(
        {"age": age, "job": job, "sex": sex, "race": race, "rich": np.where(rich, "yes", "no")}
    )


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A folder with tables, a signed schema, and a finished run."""
    place = tmp_path_factory.mktemp("world")
    people(2000, 0).to_csv(place / "people.csv", index=False)
    people(1000, 1).to_csv(place / "test.csv", index=False)
    (place / "schema.toml").write_text(to_toml(SCHEMA.to_dict()))
    done = invoke(
        *(
            "train",
            place / "people.csv",
            "--schema",
            place / "schema.toml",
            "--label",
            "rich",
            "--steps",
            "30",
        ),
        *("--constraint", PARITY, "--constraint", "fnr(label=yes, race=*) <= 0.9", "--out", place / "run"),
    )
    assert done.exit_code == 0, done.output
    return place


def invoke(*words):
    result = CliRunner().invoke(cli, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def lines(result):
    return [json.loads(line) for line in result.stdout.splitlines()]


# ------------------------------------------------------------------------------------------- train


def test_train_says_what_it_does_and_what_it_guarantees(world, tmp_path):
    done = invoke(
        *("train", world / "people.csv", "--schema", world / "schema.toml", "--label", "rich"),
        *("--constraint", PARITY, "--epsilon", "2", "--steps", "20", "--out", tmp_path / "run"),
    )
    assert done.exit_code == 0
    assert "epsilon = " in done.stdout
    assert "NOT COVERED" not in done.stdout
    assert "step 20/20" in done.stderr
    assert "worst gap" in done.stderr
    folder = RunFolder.open(tmp_path / "run")
    assert folder.finished
    assert 1.8 < folder.statement().epsilon <= 2.0
    assert folder.settings.constraints == ("demographic_parity(sex) <= 0.1",)
    assert folder.settings.groups == ("sex",)


def test_train_without_a_schema_says_what_it_reads_off_the_data(world, tmp_path):
    done = invoke(
        *("train", world / "people.csv", "--label", "rich", "--groups", "sex,race", "--steps", "5"),
        *("--out", tmp_path / "run"),
    )
    assert done.exit_code == 0
    assert "READ OFF THE DATA" in done.stderr
    for said in ("the classes", "the values of column 'sex'", "the bounds of column 'age'"):
        assert said in done.stderr
        assert said in done.stdout  # and again in the statement
    assert set(RunFolder.open(tmp_path / "run").schema.columns) == {"age", "job"}


def test_groups_with_gaps_and_with_points_are_trained_and_measured(tmp_path):
    frame = people(1500, 0)
    frame["sex"] = (frame["sex"] == "M").astype(float)  # 0.0 and 1.0
    frame["race"] = frame["race"].where(np.arange(1500) % 5 > 0)  # empty cells
    frame.to_csv(tmp_path / "people.csv", index=False)
    words = ("train", tmp_path / "people.csv", "--label", "rich", "--steps", "5", "--out", tmp_path / "run")
    done = invoke(
        *words,
        "--constraint",
        "demographic_parity(sex) <= 0.9",
        "--constraint",
        "fnr(race=missing, label=yes) <= 0.9",
    )
    assert done.exit_code == 0, done.output
    schema = RunFolder.open(tmp_path / "run").schema
    assert schema.groups == {
        "sex": Category([0, 1]),
        "race": Category(["A", "B", "missing"], missing="missing"),
    }
    found = lines(invoke("--json", "evaluate", tmp_path / "run", tmp_path / "people.csv"))[-1]
    guess = pd.Series(invoke("predict", tmp_path / "run", tmp_path / "people.csv").stdout.split()[1:])
    those = frame["race"].isna() & (frame["rich"] == "yes")
    assert found["limits"][-1]["reached"] == pytest.approx((guess[those] == "no").mean())


def test_tables_come_as_gzip_and_parquet_too(world, tmp_path):
    frame = pd.read_csv(world / "people.csv")
    with gzip.open(tmp_path / "people.csv.gz", "wt") as file:
        frame.to_csv(file, index=False)
    frame.to_parquet(tmp_path / "people.parquet")
    for name in ("people.csv.gz", "people.parquet"):
        done = invoke(
            *("-q", "train", tmp_path / name, "--schema", world / "schema.toml", "--label", "rich"),
            *("--steps", "3", "--seed", "1", "--out", tmp_path / f"run-{name}"),
        )
        assert done.exit_code == 0, done.output
        assert done.stdout == ""
    first, second = (RunFolder.open(tmp_path / f"run-people.{n}").model() for n in ("csv.gz", "parquet"))
    np.testing.assert_array_equal(first.theta, second.theta)


def test_json_mode_is_lines_of_json(world, tmp_path):
    done = invoke(
        *("--json", "train", world / "people.csv", "--schema", world / "schema.toml", "--label", "rich"),
        *("--constraint", PARITY, "--steps", "10", "--out", tmp_path / "run"),
    )
    said = lines(done)
    steps = [line for line in said if line["event"] == "step"]
    assert steps[-1]["step"] == steps[-1]["steps"] == 10
    assert 0 < steps[0]["epsilon"] <= steps[-1]["epsilon"] <= 1.0
    assert {"gradient_norm", "worst_gap", "seconds_left"} <= steps[0].keys()
    assert said[-1]["event"] == "done"
    assert said[-1]["epsilon"] == pytest.approx(steps[-1]["epsilon"], rel=1e-9)


def test_the_last_progress_is_what_the_ledger_says(world):
    folder = RunFolder.open(world / "run")
    assert folder.ledger().total_epsilon == folder.statement().epsilon


def test_a_file_gives_every_field_and_flags_win(world, tmp_path):
    fields = {
        "data": str(world / "people.csv"),
        "schema": str(world / "schema.toml"),
        "label": "rich",
        "constraints": [PARITY],
        "epsilon": 3,
        "steps": 7,
        "out": str(tmp_path / "a"),
    }
    (tmp_path / "run.toml").write_text(to_toml(fields))
    assert invoke("-q", "train", "--config", tmp_path / "run.toml").exit_code == 0
    found = RunFolder.open(tmp_path / "a").settings
    assert (found.epsilon, found.steps, found.constraints) == (3.0, 7, ("demographic_parity(sex) <= 0.1",))
    (tmp_path / "run.json").write_text(json.dumps({**fields, "learning-rate": 1.5}))
    done = invoke(
        *("-q", "train", "--config", tmp_path / "run.json", "--epsilon", "1", "--out", tmp_path / "b"),
        *("--constraint", "rate(yes) <= 0.9"),
    )
    assert done.exit_code == 0, done.output
    found = RunFolder.open(tmp_path / "b").settings
    assert (found.epsilon, found.steps, found.learning_rate) == (1.0, 7, 1.5)
    assert found.constraints == ("rate('yes') <= 0.9",)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('speed = "high"', "unknown field 'speed'"),
        ("steps = 'many'", "'steps'"),
        ("epsilon = ", "no TOML"),
        ("force = true", "unknown field 'force'"),
        ("groups = 3", "expected names"),
        ("epsilon = true", "field 'epsilon': expected a number or none, got True"),
        ("epsilon = [1]", "expected a number or none, got [1]"),
        ("steps = 1.5", "expected a whole number, got 1.5"),
        ("fit_intercept = 2", "expected true or false, got 2"),
        ("constraints = [1]", "expected text, got 1"),
        ('label = ["rich"]', "expected text, got ['rich']"),
        ("seed = -1", "-1 is not in the range"),
    ],
)
def test_wrong_files_of_settings_are_refused(tmp_path, content, words):
    (tmp_path / "a.toml").write_text(content)
    done = invoke("train", "x.csv", "--config", tmp_path / "a.toml", "--out", tmp_path / "run")
    assert done.exit_code == 2
    assert words in done.stderr
    assert not (tmp_path / "run").exists()


def test_fields_of_a_file_may_be_named_like_their_flags(world, tmp_path):
    base = {"data": str(world / "people.csv"), "schema": str(world / "schema.toml"), "label": "rich"}
    for number, given in enumerate(
        ({"constraint": [PARITY]}, {"constraint": PARITY}, {"constraints": PARITY})
    ):
        (tmp_path / "run.toml").write_text(to_toml({**base, **given, "steps": 3}))
        done = invoke("-q", "train", "--config", tmp_path / "run.toml", "--out", tmp_path / f"run-{number}")
        assert done.exit_code == 0, done.stderr
        assert RunFolder.open(tmp_path / f"run-{number}").settings.constraints == (PARITY,)
    for content, words in (
        ({"constraint": PARITY, "constraints": PARITY}, "twice"),
        ({"constrants": PARITY}, "did you mean 'constraints'?"),
        ({"learning_rat": 1}, "did you mean 'learning_rate'?"),
    ):
        (tmp_path / "run.toml").write_text(to_toml({**base, **content}))
        done = invoke("train", "--config", tmp_path / "run.toml", "--out", tmp_path / "no")
        assert (done.exit_code, words in done.stderr) == (2, True)


def test_yaml_is_read_as_plain_data(tmp_path, monkeypatch):
    words = ["train", "x.csv", "--config", tmp_path / "a.yaml", "--out", tmp_path / "run"]
    (tmp_path / "a.yaml").write_text("groups:\n  - sex\nspeed: 3\n")
    assert "unknown field 'speed'" in invoke(*words).stderr
    (tmp_path / "a.yaml").write_text("label: !!python/object/apply:os.getcwd []\n")
    done = invoke(*words)
    assert (done.exit_code, "a.yaml" in done.stderr, "Traceback" in done.stderr) == (2, True, False)
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert "pip install pyyaml" in invoke(*words).stderr


def test_a_yaml_file_trains_as_flags_do(world, tmp_path):
    (tmp_path / "run.yaml").write_text(
        f"data: {world / 'people.csv'}\nschema: {world / 'schema.toml'}\nlabel: rich\nsteps: 3\n"
        "constraints:\n  - demographic_parity(sex) <= 0.4\nepsilon: 3\n"
    )
    done = invoke("train", "--config", tmp_path / "run.yaml", "--out", tmp_path / "run")
    assert done.exit_code == 0, done.stderr
    assert RunFolder.open(tmp_path / "run").finished


def test_a_seed_is_used_but_never_kept(world, tmp_path, monkeypatch):
    words = ["train", str(world / "people.csv"), "--schema", str(world / "schema.toml"), "--label", "rich"]
    words += ["--steps", "3", "--seed", "918273645", "--out"]
    monkeypatch.setattr(sys, "argv", ["ratewise", *words, "x", "--seed=918273645"])
    for name in ("a", "b"):
        assert invoke("-q", *words, tmp_path / name).exit_code == 0
    first, second = (RunFolder.open(tmp_path / name).model().theta for name in ("a", "b"))
    np.testing.assert_array_equal(first, second)
    for path in (tmp_path / "a").rglob("*"):
        if path.is_file():
            assert b"918273645" not in path.read_bytes()


# --------------------------------------------------------------------------------------- bad input

BAD = [
    (["--label", "wealth"], 2, "label is 'wealth'"),
    (["--constraint", "demographic_parity(religion) <= 0.1"], 2, "religion"),
    (["--constraint", "demographic_parity(sex) <= "], 2, "character 28"),
    (["--constraint", "demografic_parity(sex) <= 0.1"], 2, "did you mean demographic_parity?"),
    (["--constraint", "rate(1) <= 0.1"], 2, "not among the classes"),
    (["--epsilon", "-1"], 2, "epsilon must be above 0"),
    (["--epsilon", "much"], 2, "neither a number nor none"),
    (["--epsilon", "nan"], 2, "epsilon must be finite"),
    (["--delta", "nan"], 2, "delta must be finite"),
    (["--groups", "sex,rich"], 2, "'rich' is among the groups"),
    (["--constraint", "demographic_parity(rich) <= 0.1"], 2, "'rich' is the label, not a group"),
    (["--delta", "0.1"], 2, "above 1/n"),
    (["--steps", "0"], 2, "steps"),
    (["--momentum", "2"], 2, "momentum"),
    (["--schema", "nowhere.toml"], 2, "cannot read 'nowhere.toml'"),
    (["--schema", "nowhere.txt"], 2, "must end in"),
    (["--checkpoint-every", "0"], 2, "checkpoint_every"),
    (["--frobnicate"], 2, "No such option"),
]


@pytest.mark.parametrize(("words", "code", "said"), BAD, ids=[" ".join(words) for words, _, _ in BAD])
def test_bad_input_ends_with_one_message_before_anything_is_spent(world, tmp_path, words, code, said):
    base = ["train", world / "people.csv", "--schema", world / "schema.toml", "--label", "rich"]
    done = invoke(*base, "--steps", "5", "--out", tmp_path / "run", *words)
    assert done.exit_code == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_wrong_constraint_text_gets_a_caret(world, tmp_path):
    done = invoke(
        "train",
        world / "people.csv",
        "--label",
        "rich",
        "--constraint",
        "rate(1) < 0.2",
        "--out",
        tmp_path / "r",
    )
    assert done.exit_code == 2
    shown = done.stderr.splitlines()
    at = next(i for i, line in enumerate(shown) if line.strip() == "rate(1) < 0.2")
    assert shown[at + 1].index("^") == shown[at].index("<")


POINTED = [
    ("demographic_parity(religion) <= 0.1", "religion", "not among"),
    ("fnr(label=7, race=*) <= 0.2", "7", "not among the classes: 'no', 'yes'"),
    ("fnr(race=*) <= 0.2", "fnr", "write label=..., as in fnr(label='yes')"),
    ("rate(yes, where=group(sex=Female)) <= 0.2", "Female", "not among the values of column 'sex': 'F', 'M'"),
    ("rate(yes) <= banana", "banana", "the name 'banana'"),
    ("rate(yes <= 0.2", "<=", "expected , or )"),
    ("rate(yes) >= 1.2", ">=", "no classifier can meet"),
]


@pytest.mark.parametrize(("text", "word", "words"), POINTED, ids=[text for text, *_ in POINTED])
@pytest.mark.parametrize("how", ["flag", "file", "no schema", "plan", "sweep"])
def test_the_offending_word_of_a_constraint_is_pointed_at(world, tmp_path, text, word, words, how):
    schema = ["--schema", world / "schema.toml"]
    rows = [world / "people.csv", "--label", "rich", "--out", tmp_path / "run"]
    calls = {
        "flag": ["train", *rows, *schema, "--constraint", text],
        "file": ["train", *rows, *schema, "--config", tmp_path / "run.toml"],
        "no schema": ["train", *rows, "--groups", "sex,race", "--constraint", text],
        "plan": ["plan", "--rows", "2000", *schema, "--constraint", PARITY, "--constraint", text],
        "sweep": ["sweep", *rows, *schema, "--epsilons", "1,2", "--constraint", text],
    }
    (tmp_path / "run.toml").write_text(to_toml({"constraints": [PARITY, text]}))
    done = invoke(*calls[how])
    assert done.exit_code == 2
    assert words in done.stderr
    shown, caret = done.stderr.splitlines()[-2:]
    assert shown.strip() == text
    assert shown[caret.index("^") :].startswith(word)
    assert not (tmp_path / "run").exists()


def test_a_schema_is_held_against_the_constraints_before_the_table_is_read(world, tmp_path):
    base = ["train", "nowhere.csv", "--label", "rich", "--schema", world / "schema.toml", "--out"]
    done = invoke(*base, tmp_path / "run", "--constraint", "demographic_parity(religion) <= 0.1")
    assert "religion" in done.stderr
    assert "nowhere.csv" not in done.stderr


def test_missing_columns_and_files(world, tmp_path):
    out = ["--out", tmp_path / "run"]
    done = invoke("train", world / "people.csv", "--label", "wealth", *out)
    assert (done.exit_code, "no column 'wealth'" in done.stderr) == (2, True)
    done = invoke("train", world / "people.csv", "--label", "rich", "--groups", "faith", *out)
    assert (done.exit_code, "no column 'faith'" in done.stderr) == (2, True)
    done = invoke("train", tmp_path / "nowhere.csv", "--label", "rich", *out)
    assert (done.exit_code, "there is no file" in done.stderr) == (2, True)
    done = invoke("train", world / "people.csv", *out)
    assert (done.exit_code, "--label is missing" in done.stderr) == (2, True)
    done = invoke("train", world / "people.csv", "--label", "rich")
    assert (done.exit_code, "--out is missing" in done.stderr) == (2, True)
    done = invoke("train", *out, "--label", "rich")
    assert (done.exit_code, "DATA is missing" in done.stderr) == (2, True)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", b"", "it is empty"),
        ("a.csv", b"x,y\n1,2\n3,4,5\n", "same number of fields"),
        ("a.csv", b"x,y\n", "no rows"),
        ("a.csv", b"\xff\xfe\x00", "UTF-8"),
        ("a.csv.gz", b"secret,1", "gzip"),
        ("a.parquet", b"secret", "Parquet"),
        ("a.xlsx", b"secret", "neither CSV"),
        ("a.csv", b"x,y,x\n1,2,3\n3,4,5\n", "has the column 'x' twice"),
        ("a.csv", b",x,y\n0,1,2\n1,4,5\n", "column 1 of"),
        ("a.csv", b"x;y\n1;2\n3;4\n", "separated by semicolons"),
        ("a.csv", b"x\ty\n1\t2\n", "separated by tabs"),
        ("a.csv", b"x,y\n1,0\n2,0\n", "'y' has the same value in every row"),
    ],
)
def test_tables_that_cannot_be_read_are_refused_without_showing_them(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    done = invoke("train", tmp_path / name, "--label", "y", "--out", tmp_path / "run")
    assert done.exit_code == 2
    assert words in done.stderr
    assert "secret" not in done.output.replace(str(tmp_path), "")


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("job", "secret agent", "'job'"),
        ("job", None, "missing values"),
        ("rich", "secret", "labels"),
        ("sex", "x", "'sex'"),
    ],
)
def test_rows_that_the_schema_does_not_allow_are_refused_without_showing_them(
    world, tmp_path, column, value, words
):
    frame = people(200, 3)
    frame.loc[7, column] = value
    frame.to_csv(tmp_path / "odd.csv", index=False)
    done = invoke(
        *("train", tmp_path / "odd.csv", "--schema", world / "schema.toml", "--label", "rich"),
        *("--constraint", PARITY, "--out", tmp_path / "run"),
    )
    assert done.exit_code == 2
    assert words in done.stderr
    assert "secret" not in done.output
    assert [p.name for p in tmp_path.iterdir()] == ["odd.csv"]


def test_tables_as_other_programs_write_them(tmp_path):
    """A mark of byte order, line ends and commas inside quotes, odd names and values."""
    people(300, 0).rename(columns={"sex": "the sex", "age": 'âge, "in\nyears"'}).replace(
        {"F": 'f\'s "é"\n'}
    ).to_csv(tmp_path / "my people.csv", index=False, encoding="utf-8-sig")
    limit = "rate(yes, where=group(**{'the sex': 'f\\'s \\\"é\\\"\\n'})) <= 0.9"
    done = invoke(
        *("train", tmp_path / "my people.csv", "--label", "rich", "--constraint", limit),
        *("--steps", "3", "--out", tmp_path / "my run"),
    )
    assert done.exit_code == 0, done.stderr
    folder = RunFolder.open(tmp_path / "my run")
    assert set(folder.schema.columns) == {'âge, "in\nyears"', "job", "race"}
    assert invoke("evaluate", tmp_path / "my run", tmp_path / "my people.csv").exit_code == 0
    assert invoke("report", tmp_path / "my run").exit_code == 0


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([-1e308, 1e308], "column 'x y': lower and upper are too far apart"),
        ([1.0, float("inf")], "column 'x y' holds infinite values"),
        ([None, None], "--leave-out 'x y'"),
        ([pd.Timestamp("2020-01-01")] * 2, "column 'x y': values must hold text, numbers or booleans"),
    ],
)
def test_columns_that_cannot_be_described_are_named(tmp_path, values, words):
    frame = pd.DataFrame({"x y": pd.Series(values * 20), "rich": ["yes", "no"] * 20})
    frame.to_parquet(tmp_path / "odd.parquet")
    done = invoke("train", tmp_path / "odd.parquet", "--label", "rich", "--out", tmp_path / "run")
    assert (done.exit_code, words in done.stderr, "RuntimeWarning" in done.stderr) == (2, True, False)


def test_rows_too_few_for_the_budget_are_told_so(world, tmp_path):
    people(60, 0).to_csv(tmp_path / "few.csv", index=False)
    words = ["--schema", world / "schema.toml", "--epsilon", "0.1", "--delta", "1e-4"]
    run = ["--label", "rich", "--steps", "3", "--out", tmp_path / "run"]
    for done in (
        invoke("train", tmp_path / "few.csv", *words, *run),
        invoke("plan", "--rows", "60", "--no-rehearse", *words),
    ):
        assert done.exit_code == 0
        assert "warning: 60 rows are too few" in done.stderr


def test_a_budget_that_cannot_be_is_refused_before_the_table_is_read(tmp_path):
    for words in (["--epsilon", "-1"], ["--epsilon", "inf"], ["--delta", "0"], ["--delta", "1.5"]):
        done = invoke("train", "nowhere.csv", "--label", "y", *words, "--out", tmp_path / "run")
        assert (done.exit_code, words[0].strip("-") in done.stderr, "nowhere" in done.stderr) == (
            2,
            True,
            False,
        )


def test_other_texts_can_stand_for_missing_cells(world, tmp_path):
    frame = people(500, 3)
    frame["job"] = frame["job"].where(np.arange(500) % 50 > 0, "NA")
    frame.to_csv(tmp_path / "gaps.csv", index=False)
    words = ["schema", tmp_path / "gaps.csv", "--label", "rich"]
    values = lines(invoke("--json", *words))[0]["schema"]["columns"]["job"]["values"]
    assert values == ["NA", "clerk", "sales"]
    described = lines(invoke("--json", *words, "--missing", "NA"))[0]["schema"]["columns"]["job"]
    assert described["missing"] == "missing"


def test_nothing_is_replaced_without_force(world, tmp_path):
    base = ["-q", "train", world / "people.csv", "--schema", world / "schema.toml", "--label", "rich"]
    base += ["--steps", "3", "--out", tmp_path / "run"]
    assert invoke(*base).exit_code == 0
    before = (tmp_path / "run" / "model.npz").read_bytes()
    done = invoke(*base)
    assert done.exit_code == 2
    assert "exists already" in done.stderr
    assert (tmp_path / "run" / "model.npz").read_bytes() == before
    assert invoke(*base, "--force").exit_code == 0
    assert (tmp_path / "run" / "model.npz").read_bytes() != before


def test_a_folder_that_cannot_be_made_is_said_before_anything_is_read(world, tmp_path):
    """Real places that refuse everybody, root too: below a file, and in a file system of the kernel's."""
    (tmp_path / "file").write_text("")
    run = world / "run"
    places = [tmp_path / "file" / "run", tmp_path / "file" / "a" / "run"]
    places += [Path("/proc/run")] * Path("/proc/self").is_dir()
    for out in places:
        base = [world / "people.csv", "--label", "rich", "--out", out]
        for words in (["train", *base], ["train", *base, "--force"], ["sweep", *base, "--epsilons", "1,2"]):
            done = invoke(*words)
            assert done.exit_code == 2
            assert f"cannot write '{out}'" in done.stderr
            assert "nothing was spent" in done.stderr
            assert "reading" not in done.stderr  # not even the table
            assert ".tmp" not in done.stderr
    for words in (
        ["predict", run, world / "test.csv", "--out", "/proc/found.csv"],
        ["report", run, world / "test.csv", "--out", "/proc/page.html"],
        ["report", run, world / "test.csv", "--out", tmp_path / "page.html", "--card", "/proc/card.md"],
        ["schema", world / "people.csv", "--label", "rich", "--out", "/proc/schema.toml"],
    ):
        done = invoke(*words)
        assert done.exit_code == 2
        assert f"cannot write '{words[-1]}'" in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_folder_without_permission_is_said_before_anything_is_read(tmp_path):
    """By a process that really may not write there: one of nobody, where the tests are root's."""
    (tmp_path / "mine").mkdir(mode=0o555)
    tmp_path.chmod(0o755)
    out, told = tmp_path / "mine" / "run", os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setuid(65534)
            done = invoke("train", "nowhere.csv", "--label", "y", "--out", out)
            os.write(told[1], f"{done.exit_code} {done.stderr}".encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(told[1])
    with os.fdopen(told[0]) as file:
        said = file.read()
    assert said.startswith("2 ")
    assert f"cannot write '{out}': Permission denied" in said
    assert "nowhere.csv" not in said


def test_an_error_of_the_system_names_the_file_that_was_asked_for(tmp_path):
    from ratewise.whole_files import write_whole

    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="Not a directory") as caught:
        write_whole(tmp_path / "file" / "page.html", "x")
    assert caught.value.filename == str(tmp_path / "file" / "page.html")


def test_a_spent_book_refuses_with_its_own_exit_code(world, tmp_path):
    base = ["-q", "train", world / "people.csv", "--schema", world / "schema.toml", "--label", "rich"]
    base += ["--steps", "5", "--ledger", tmp_path / "book.json", "--ledger-cap", "1.2"]
    assert invoke(*base, "--out", tmp_path / "one").exit_code == 0
    done = invoke(*base, "--out", tmp_path / "two")
    assert done.exit_code == 3
    assert "nothing was released" in done.stderr
    assert not (tmp_path / "two").exists()
    assert Ledger.open(tmp_path / "book.json").total_epsilon <= 1.0
    done = invoke("--json", *base[1:], "--out", tmp_path / "three")
    assert lines(done)[-1]["exit_code"] == 3


def test_a_run_is_measured_where_its_shared_book_is_not(world, tmp_path):
    (tmp_path / "books").mkdir()
    base = ["-q", "train", world / "people.csv", "--schema", world / "schema.toml", "--label", "rich"]
    base += ["--steps", "5", "--ledger", tmp_path / "books" / "book.json", "--out", tmp_path / "run"]
    assert invoke(*base).exit_code == 0
    (tmp_path / "books").rename(tmp_path / "elsewhere")
    assert invoke("evaluate", tmp_path / "run", world / "test.csv").exit_code == 0
    assert invoke("report", tmp_path / "run").exit_code == 0
    assert "is not where it was" in (tmp_path / "run" / "report.html").read_text()


# ------------------------------------------------------------------------------- after the training


def test_predict_needs_neither_label_nor_groups(world, tmp_path):
    pd.read_csv(world / "test.csv")[["age", "job"]].to_csv(tmp_path / "new.csv", index=False)
    done = invoke("predict", world / "run", tmp_path / "new.csv", "--proba", "--out", tmp_path / "found.csv")
    assert done.exit_code == 0
    found = pd.read_csv(tmp_path / "found.csv")
    assert list(found) == ["prediction", "probability of no", "probability of yes"]
    assert ((found["probability of yes"] > 0.5) == (found["prediction"] == "yes")).all()
    model = RunFolder.open(world / "run").model()
    assert found["prediction"].tolist() == model.predict(pd.read_csv(tmp_path / "new.csv")).tolist()
    piped = invoke("predict", world / "run", tmp_path / "new.csv")
    assert piped.stdout.splitlines()[1:] == found["prediction"].tolist()
    (line,) = lines(invoke("--json", "predict", world / "run", tmp_path / "new.csv", "--proba"))
    assert (line["event"], line["rows"], line["prediction"]) == ("result", 1000, found["prediction"].tolist())
    assert line["probability of yes"] == pytest.approx(found["probability of yes"])
    again = invoke("predict", world / "run", tmp_path / "new.csv", "--out", tmp_path / "found.csv")
    assert (again.exit_code, "exists already" in again.stderr) == (2, True)
    pd.DataFrame({"age": [30]}).to_csv(tmp_path / "short.csv", index=False)
    done = invoke("predict", world / "run", tmp_path / "short.csv")
    assert (done.exit_code, "'job'" in done.stderr) == (2, True)
    pd.DataFrame({"age": [30], "job": ["secret agent"]}).to_csv(tmp_path / "odd.csv", index=False)
    done = invoke("predict", world / "run", tmp_path / "odd.csv")
    assert (done.exit_code, "secret agent" in done.output) == (2, False)
    done = invoke("predict", world / "run", tmp_path / "odd.csv", "--unknown", "zeros")
    assert (done.exit_code, len(done.stdout.splitlines())) == (0, 2)


def test_evaluate_agrees_with_a_count_by_hand(world):
    done = invoke("--json", "evaluate", world / "run", world / "test.csv")
    assert done.exit_code == 0
    found = next(line for line in lines(done) if line["event"] == "result")
    test = pd.read_csv(world / "test.csv")
    predicted = RunFolder.open(world / "run").model().predict(test)
    assert found["accuracy"] == pytest.approx(np.mean(predicted == test["rich"]))
    rates = pd.Series(predicted == "yes").groupby(test["sex"]).mean()
    gap = next(limit for limit in found["limits"] if "sex" in limit["name"] and limit["asked"] == "<= 0.1")
    assert gap["reached"] == pytest.approx(rates["F"] - rates["M"])
    assert sum("race" in limit["name"] for limit in found["limits"]) == 2
    assert "missed" in invoke("evaluate", world / "run", world / "test.csv").stdout or not found["missed"]


def test_private_evaluation_is_one_booked_release(world, tmp_path):
    import shutil

    shutil.copytree(world / "run", tmp_path / "run")
    words = ["--json", "evaluate", tmp_path / "run", world / "test.csv", "--epsilon", "2", "--delta", "1e-4"]
    done = invoke(*words)
    assert done.exit_code == 0, done.output
    found = lines(done)[-1]
    exact = lines(invoke("--json", "evaluate", world / "run", world / "test.csv"))[-1]["accuracy"]
    assert found["accuracy"]["value"] != exact
    assert found["accuracy"]["value"] == pytest.approx(exact, abs=0.1)
    book = Ledger.open(tmp_path / "run" / "evaluations.json")
    assert book.total(1e-4) == found["total_epsilon"] <= 2.0
    assert lines(invoke(*words))[-1]["total_epsilon"] > 2.0  # the second one adds up
    assert RunFolder.open(tmp_path / "run").ledger().total_epsilon <= 1.0
    assert "released with noise" in invoke(*words[1:]).stdout
    done = invoke(*words, "--ledger", tmp_path / "nowhere.json")
    assert done.exit_code == 1


def test_strict_evaluation_fails_exactly_if_a_limit_is_exceeded(world, tmp_path):
    base = ["-q", "train", world / "people.csv", "--schema", world / "schema.toml", "--label", "rich"]
    kept, broken = "rate(yes) <= 1", "rate(yes, where=group(sex=F)) >= 0.99"
    for name, constraint, code in (("kept", kept, 0), ("broken", broken, 4)):
        words = ["--epsilon", "none", "--steps", "3", "--constraint", constraint, "--out", tmp_path / name]
        assert invoke(*base, *words).exit_code == 0
        assert invoke("evaluate", tmp_path / name, world / "test.csv").exit_code == 0
        assert invoke("evaluate", tmp_path / name, world / "test.csv", "--strict").exit_code == code


def test_report_writes_a_page_and_a_card(world, tmp_path):
    base = ["-q", "train", world / "people.csv", "--schema", world / "schema.toml", "--label", "rich"]
    assert invoke(*base, "--steps", "3", "--constraint", PARITY, "--out", tmp_path / "run").exit_code == 0
    done = invoke("report", tmp_path / "run")
    assert (done.exit_code, "not evaluated yet" in done.stderr) == (2, True)
    done = invoke("report", tmp_path / "run", world / "test.csv", "--card", tmp_path / "card.md")
    assert done.exit_code == 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert "<html" in page
    assert "epsilon" in page
    assert "sex" in (tmp_path / "card.md").read_text()
    done = invoke("report", tmp_path / "run")
    assert (done.exit_code, "exists already" in done.stderr) == (2, True)
    assert invoke("report", tmp_path / "run", "--force").exit_code == 0  # from the last evaluation
    first = (tmp_path / "run" / "evaluation-1.json").read_bytes()
    assert invoke("evaluate", tmp_path / "run", world / "people.csv").exit_code == 0
    assert (tmp_path / "run" / "evaluation-1.json").read_bytes() == first
    assert invoke("report", tmp_path / "run", "--out", tmp_path / "other.html").exit_code == 0
    assert "2,000" in (tmp_path / "other.html").read_text()
    words = ["report", tmp_path / "run", world / "test.csv", "--out", tmp_path / "two.html", "--baseline"]
    assert invoke(*words, world / "run").exit_code == 0
    kept = json.loads(RunFolder.open(tmp_path / "run").evaluations[-1].read_text())
    assert len(kept["models"]) == 2
    assert invoke("report", tmp_path / "run", "--baseline", world / "run", "--force").exit_code == 2
    done = invoke("report", tmp_path / "run", "--out", tmp_path / "new.html", "--card", tmp_path / "card.md")
    assert (done.exit_code, "exists already" in done.stderr) == (2, True)


def test_the_page_names_the_limits_that_training_warned_of(world, tmp_path):
    words = ["train", world / "people.csv", "--schema", world / "schema.toml", "--label", "rich"]
    done = invoke(*words, "--constraint", PARITY, "--epsilon", "0.1", "--out", tmp_path / "run")
    assert done.exit_code == 0
    warned = [line for line in done.stderr.splitlines() if "not to be relied on" in line]
    doubts = RunFolder.open(tmp_path / "run").doubts()
    assert [line.split("budget: ")[1] for line in warned] == [str(doubt) for doubt in doubts]
    assert len(doubts) == 2
    assert invoke("evaluate", tmp_path / "run", world / "test.csv").exit_code == 0
    assert invoke("report", tmp_path / "run", "--card", tmp_path / "card.md").exit_code == 0
    page, card = ((tmp_path / place).read_text() for place in ("run/report.html", "card.md"))
    assert page.count("<b>Doubt. </b>Not to be relied on at this budget: ") == 2
    assert card.count("Not to be relied on at this budget: ") == 2
    assert page.count(f">doubtful: about {doubts[0].rows:.0f} rows, known to ") == 2


def test_runs_to_compare_with_keep_their_budgets_and_their_names(world, tmp_path):
    base = ["-q", "train", world / "people.csv", "--schema", world / "schema.toml", "--label", "rich"]
    for place, epsilon in (("a", "2"), ("b", "none")):
        assert (
            invoke(*base, "--steps", "3", "--epsilon", epsilon, "--out", tmp_path / place / "run").exit_code
            == 0
        )
    others = ("--baseline", tmp_path / "a" / "run", "--baseline", tmp_path / "b" / "run")
    done = invoke("report", world / "run", world / "test.csv", "--out", tmp_path / "page.html", *others)
    assert done.exit_code == 0
    models = json.loads(RunFolder.open(world / "run").evaluations[-1].read_text())["models"]
    assert [model["name"] for model in models] == ["run", str(tmp_path / "a/run"), str(tmp_path / "b/run")]
    spent = RunFolder.open(tmp_path / "a" / "run").statement().epsilon
    assert [model["epsilon"] for model in models[1:]] == [spent, None]
    assert [model["private"] for model in models] == [True, True, False]


def test_compare_shows_runs_side_by_side(world, tmp_path):
    base = ["-q", "train", world / "people.csv", "--schema", world / "schema.toml", "--label", "rich"]
    assert invoke(*base, "--steps", "3", "--epsilon", "none", "--out", tmp_path / "free").exit_code == 0
    done = invoke("--json", "compare", world / "run", tmp_path / "free", "--data", world / "test.csv")
    assert done.exit_code == 0
    first, second = lines(done)[-1]["runs"]
    assert first["epsilon"] <= 1.0
    assert second["epsilon"] == "infinity"
    assert min(first["accuracy"], second["accuracy"]) > 0.5
    shown = invoke("compare", world / "run", tmp_path / "free").stdout
    assert "demographic_parity(sex) <= 0.1" in shown
    assert "none" in shown
    done = invoke("compare", tmp_path)
    assert (done.exit_code, "is no run folder" in done.stderr) == (2, True)


def test_a_tampered_model_is_refused(world, tmp_path):
    import shutil

    shutil.copytree(world / "run", tmp_path / "run")
    path = tmp_path / "run" / "model.npz"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    done = invoke("predict", tmp_path / "run", world / "test.csv")
    assert done.exit_code == 2
    assert "model.npz" in done.stderr


# --------------------------------------------------------------------------------- schema and plan


def test_schema_drafts_a_file_that_a_person_signs(world, tmp_path):
    words = ["schema", world / "people.csv", "--label", "rich", "--groups", "sex", "--leave-out", "race"]
    done = invoke(*words, "--out", tmp_path / "s.toml")
    assert done.exit_code == 0
    assert "READ OFF THE DATA" in done.stderr
    text = (tmp_path / "s.toml").read_text()
    assert "signed = false" in text
    assert "DRAFTED FROM THE DATA" in text
    done = invoke(*words, "--out", tmp_path / "s.toml")
    assert (done.exit_code, "exists already" in done.stderr) == (2, True)
    train = [
        "train",
        world / "people.csv",
        "--schema",
        tmp_path / "s.toml",
        "--label",
        "rich",
        "--steps",
        "3",
    ]
    done = invoke(*train, "--out", tmp_path / "a")
    assert "not signed" in done.stderr
    (tmp_path / "s.toml").write_text(text.replace("signed = false", "signed = true"))
    done = invoke(*train, "--out", tmp_path / "b")
    assert "warning" not in done.stderr
    assert RunFolder.open(tmp_path / "b").statement().private
    assert invoke(*words, "--out", tmp_path / "s.json").exit_code == 0
    assert Schema.from_dict(json.loads((tmp_path / "s.json").read_text())).groups.keys() == {"sex"}
    shown = lines(invoke("--json", *words))
    assert shown[0]["schema"]["label"]["name"] == "rich"
    assert invoke(*words, "--out", tmp_path / "s.txt").exit_code == 2
    for clash in (["--groups", "rich"], ["--groups", "sex,race"]):
        done = invoke(*words, *clash)
        assert (done.exit_code, "choose one" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    "content",
    [
        {"a": "é\n\t\"'\\\x7f\x01😀", "b": [1, -2.5, True, "x"], "c": {"d e": {"f": 1e-9}, "g": {}}},
        SCHEMA.to_dict(),
    ],
)
def test_toml_reads_back(content):
    import tomllib

    assert tomllib.loads(to_toml(content)) == content


def test_plan_touches_no_data_and_agrees_with_the_training(world):
    words = [
        "plan",
        "--rows",
        "2000",
        "--schema",
        world / "schema.toml",
        "--constraint",
        PARITY,
        "--steps",
        "30",
    ]
    words += ["--constraint", "fnr(label=yes, race=*) <= 0.9", "--no-rehearse"]
    shown = lines(invoke("--json", *words))[0]
    plan = RunFolder.open(world / "run").plan
    assert shown["gradient_noise"] == plan.gradient_noise
    assert shown["histogram_noise"] == plan.histogram_noise
    assert (shown["steps"], shown["rows_per_step"]) == (30, plan.expected_rows)
    assert "gradient:" in invoke(*words).stdout


@pytest.mark.parametrize(("flags", "bent"), [((), True), (("--curves",), True), (("--no-curves",), False)])
def test_numbers_bend_unless_told_otherwise(world, tmp_path, flags, bent):
    schema = ("--schema", world / "schema.toml")
    words = ["-q", "train", world / "people.csv", *schema, "--label", "rich", "--steps", "3", *flags]
    assert invoke(*words, "--out", tmp_path / "run").exit_code == 0
    assert (RunFolder.open(tmp_path / "run").model().model.scaling.curved is not None) == bent
    planned = ["plan", "--rows", "2000", *schema, "--no-rehearse", *flags]
    assert ("with a curve" in invoke(*planned).stdout) == bent
    assert lines(invoke("--json", *planned))[0]["curves"] == (1 if bent else 0)
    plain = invoke("plan", "--rows", "500", "--features", "5", "--no-rehearse", *flags)
    assert plain.exit_code == (2 if "--curves" in flags else 0)


@pytest.mark.parametrize(
    ("flags", "tails"),
    [((), 2.0), (("--tails", "auto"), 2.0), (("--tails", "1.5"), 1.5), (("--tails", "none"), None)],
)
def test_tails_are_cut_off_unless_told_otherwise(world, tmp_path, flags, tails):
    schema = ("--schema", world / "schema.toml")
    words = ["-q", "train", world / "people.csv", *schema, "--label", "rich", "--steps", "3", *flags]
    assert invoke(*words, "--out", tmp_path / "run").exit_code == 0
    assert RunFolder.open(tmp_path / "run").plan.preparation.tails == tails
    upper = RunFolder.open(tmp_path / "run").model().model.scaling.upper
    assert bool(np.any(upper < 1.0)) == (tails is not None)
    for of in (schema, ("--features", "5")):
        planned = ["plan", "--rows", "2000", *of, *flags]
        assert lines(invoke("--json", *planned))[0]["tails"] == tails
        assert ("deviations from theirs" in invoke(*planned).stdout) == (tails is not None)


@pytest.mark.parametrize(
    ("rows", "flags", "bends"), [(1000, (), True), (1000, ("--no-curves",), False), (9000, (), False)]
)
def test_a_plan_tells_of_bends_where_rows_are_few(rows, flags, bends):
    planned = ("plan", "--rows", str(rows), "--features", "8", *flags)
    size = lines(invoke("--json", *planned))[0]["bends"]
    assert (size is not None and 0.05 <= size < 0.5) == bends
    assert ("numbers bend a little" in invoke(*planned).stdout) == bends


@pytest.mark.parametrize("tails", ["0", "-1", "few", "inf"])
def test_tails_that_make_no_sense_are_refused(tails):
    found = invoke("plan", "--rows", "2000", "--features", "5", "--tails", tails)
    assert found.exit_code == 2
    assert "tails" in found.stderr


@pytest.mark.parametrize(
    ("written", "found"), [("true", None), ("2.5", 2.5), ('"auto"', 2.0), ('"None"', None)]
)
def test_tails_in_a_file(tmp_path, written, found):
    (tmp_path / "plan.json").write_text(f'{{"tails": {written}, "rows": 2000, "features": 5}}')
    shown = invoke("--json", "plan", "--config", tmp_path / "plan.json", "--no-rehearse")
    if written == "true":
        assert shown.exit_code == 2
        assert "neither a number nor auto nor none" in shown.output
    else:
        assert lines(shown)[0]["tails"] == found


@pytest.mark.parametrize(("rows", "drawn"), [("400", True), ("400000", False)])
def test_a_plan_tells_of_its_penalty_on_weights(rows, drawn):
    words = ["plan", "--rows", rows, "--features", "5", "--no-rehearse", "--delta", "1e-7"]
    assert ("weights:" in invoke(*words).stdout) == drawn
    assert (json.loads(invoke("--json", *words).stdout.splitlines()[-1])["l1"] > 0) == drawn
    assert "weights:" not in invoke(*words, "--l1", "0").stdout
    assert "penalty of 0.25" in invoke(*words, "--l1", "0.25").stdout


def test_plan_from_numbers_rehearses_on_made_up_rows():
    words = ["--json", "plan", "--rows", "3000", "--features", "5", "--steps", "30", "--group", "sex=F,M"]
    words += [
        "--group",
        "age=number",
        "--constraint",
        PARITY,
        "--constraint",
        "rate(1, group(age=below(50))) <= 0.9",
    ]
    losses = {}
    for epsilon in ("0.03", "20"):
        found = lines(invoke(*words, "--epsilon", epsilon))[0]["rehearsal"]
        assert found["rows"] == 3000
        assert found["accuracy_without"] > 0.7
        losses[epsilon] = found["loss"]
    assert losses["20"] + 0.02 < losses["0.03"]
    assert invoke("plan", "--features", "5").exit_code == 2
    assert invoke("plan", "--rows", "5").exit_code == 2
    for rows in ("0", "-5"):
        done = invoke("plan", "--rows", rows, "--features", "5")
        assert (done.exit_code, "rows must be" in done.stderr) == (2, True)
    done = invoke("plan", "--rows", "500", "--features", "5", "--group", "sex")
    assert (done.exit_code, "COLUMN=A,B" in done.stderr) == (2, True)


# ------------------------------------------------------------------------------------------- sweep


def test_sweep_states_its_total_and_books_all_runs_in_one_ledger(world, tmp_path):
    words = ["--json", "sweep", world / "people.csv", "--schema", world / "schema.toml", "--label", "rich"]
    words += [
        "--constraint",
        "demographic_parity(sex) <= {slack}",
        "--slack",
        "0.05,0.3",
        "--epsilons",
        "0.5,1",
    ]
    words += ["--steps", "5", "--test", world / "test.csv"]
    done = invoke(*words, "--max-total", "0.8", "--out", tmp_path / "no")
    assert done.exit_code == 3
    assert not (tmp_path / "no").exists()
    done = invoke(*words, "--out", tmp_path / "sweep")
    assert done.exit_code == 0, done.output
    said = lines(done)
    stated = next(line["total_epsilon"] for line in said if "total_epsilon" in line)
    result = said[-1]
    assert len(result["runs"]) == 4
    ledger = Ledger.open(tmp_path / "sweep" / "ledger.json")
    assert result["total_epsilon"] == ledger.total_epsilon == pytest.approx(stated, rel=1e-3)
    assert 1.0 < ledger.total_epsilon < 3.0
    assert sorted(p.name for p in (tmp_path / "sweep").glob("run-*")) == [f"run-0{i}" for i in (1, 2, 3, 4)]
    assert not list((tmp_path / "sweep").glob("run-*/ledger.json"))
    found = [RunFolder.open(p) for p in sorted((tmp_path / "sweep").glob("run-*"))]
    assert [f.settings.epsilon for f in found] == [0.5, 1.0, 0.5, 1.0]
    assert found[0].settings.constraints == ("demographic_parity(sex) <= 0.05",)
    assert all(row["accuracy"] > 0.5 for row in result["runs"])
    again = invoke(*words[1:], "--out", tmp_path / "sweep")
    assert (again.exit_code, "exists already" in again.stderr) == (2, True)
    assert "--force" not in again.stderr  # which a sweep does not have


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--slack", "0.1"], "go together"),
        (["--constraint", "fnr() <= {slack}"], "go together"),
        (["--epsilons", "a"], "finite numbers, separated by commas, got 'a'"),
        (["--epsilons", "inf"], "finite"),
        (["--ledger", "x.json"], "ledger of its own"),
    ],
)
def test_sweeps_that_cannot_be(world, tmp_path, words, said):
    done = invoke("sweep", world / "people.csv", "--label", "rich", "--out", tmp_path / "s", *words)
    assert done.exit_code == 2
    assert said in done.stderr


def test_a_sweep_takes_its_numbers_from_a_file(world, tmp_path):
    fields = {"data": str(world / "people.csv"), "schema": str(world / "schema.toml"), "label": "rich"}
    limit = "demographic_parity(sex) <= {slack}"
    fields |= {"constraints": limit, "slack": [0.1, 0.2], "epsilons": [1], "steps": 3}
    (tmp_path / "sweep.toml").write_text(to_toml(fields))
    done = invoke("--json", "sweep", "--config", tmp_path / "sweep.toml", "--out", tmp_path / "sweep")
    assert done.exit_code == 0, done.output
    assert [row["slack"] for row in lines(done)[-1]["runs"]] == [0.1, 0.2]


def test_a_sweep_looks_at_its_test_table_before_it_spends(world, tmp_path):
    words = ["sweep", world / "people.csv", "--schema", world / "schema.toml", "--label", "rich"]
    words += ["--epsilons", "1", "--constraint", PARITY, "--steps", "3", "--out", tmp_path / "sweep"]
    test = pd.read_csv(world / "test.csv")
    test.drop(columns="sex").to_csv(tmp_path / "lacking.csv", index=False)
    test.replace({"job": {"clerk": "pilot"}}).to_csv(tmp_path / "strange.csv", index=False)
    for name, said in (("none", "no file"), ("lacking", "'sex'"), ("strange", "'job'")):
        done = invoke(*words, "--test", tmp_path / f"{name}.csv")
        assert (done.exit_code, said in done.stderr) == (2, True)
        assert not (tmp_path / "sweep").exists()


# -------------------------------------------------------------------------------------- the command


def test_help_version_and_unknown_commands():
    assert "Exit codes" in invoke("--help").stdout
    for command in cli.commands:
        assert invoke(command, "--help").exit_code == 0
    assert set(cli.commands) >= {
        *("train", "resume", "schema", "plan", "predict", "evaluate", "report", "compare", "sweep")
    }
    assert invoke("--version").stdout.startswith("ratewise, version ")
    assert invoke("frobnicate").exit_code == 2
    for words in (
        ["--json", "predict", "a", "b"],
        ["predict", "a", "b", "--json"],
        ["predict", "--json", "a", "b"],
    ):
        assert lines(invoke(*words))[0]["exit_code"] == 2  # wherever the flag stands


@pytest.mark.parametrize(("how", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_stops_between_two_steps_and_resume_goes_on(world, tmp_path, monkeypatch, how, code):
    import signal

    from ratewise.cli.watching import Watcher

    show = Watcher._show
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with monkeypatch.context() as patched:
        patched.setattr(Watcher, "_show", lambda *a: (show(*a), signal.raise_signal(getattr(signal, how))))
        done = invoke(
            *("train", world / "people.csv", "--schema", world / "schema.toml", "--label", "rich"),
            *("--steps", "12", "--out", tmp_path / "run"),
        )
    assert done.exit_code == code
    assert f"ratewise resume {tmp_path / 'run'}" in done.stderr
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    assert RunFolder.open(tmp_path / "run").ledger().total_epsilon < 0.7
    resumed = invoke("resume", tmp_path / "run")
    assert resumed.exit_code == 0
    assert "going on after step 1 of 12" in resumed.stderr
    assert RunFolder.open(tmp_path / "run").statement().epsilon <= 1.0


@pytest.mark.parametrize("moment", ["just before", "just after", "both"])
def test_a_signal_as_the_folder_appears_says_how_to_go_on(world, tmp_path, monkeypatch, moment):
    import signal

    from ratewise.runs import folder as module

    real = module.take_place

    def placed(draft, target):
        if moment != "just after":
            signal.raise_signal(signal.SIGINT)
        real(draft, target)
        if moment != "just before":
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(module, "take_place", placed)
    out = tmp_path / "my run"
    done = invoke(
        *("train", world / "people.csv", "--schema", world / "schema.toml", "--label", "rich"),
        *("--steps", "12", "--out", out),
    )
    assert done.exit_code == 130
    assert f"ratewise resume '{out}'" in done.stderr
    if moment != "both":  # the second Ctrl-C stops at once
        saved = read_checkpoint(RunFolder.open(out).checkpoint_path)
        assert saved["fields"]["steps_done"] == 0  # no step is taken once somebody asked to stop
    resumed = invoke("resume", out)
    assert resumed.exit_code == 0
    assert RunFolder.open(out).statement().epsilon <= 1.0


def test_a_signal_before_the_folder_appears_leaves_nothing(world, tmp_path, monkeypatch):
    import signal

    from ratewise.runs import folder as module

    def twice(*_):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(module, "keep_books", twice)
    done = invoke(
        *("train", world / "people.csv", "--schema", world / "schema.toml", "--label", "rich"),
        *("--out", tmp_path / "run"),
    )
    assert done.exit_code == 130
    assert "nothing was made" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_no_time_left_is_shown_before_there_is_a_pace(world, tmp_path, monkeypatch):
    """The first step, and adding up epsilon for it, take far longer than the others."""
    import time

    from ratewise.cli.watching import Watcher

    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    show = Watcher._show

    def slow(self, record, now):
        show(self, record, now)
        clock[0] += 100.0 if record.step == 1 else 0.0

    monkeypatch.setattr(Watcher, "_show", slow)
    step = Watcher.on_step

    def ticking(self, record):
        clock[0] += 60.0 if record.step == 1 else 1.0
        step(self, record)

    monkeypatch.setattr(Watcher, "on_step", ticking)
    done = invoke(
        *("--json", "train", world / "people.csv", "--schema", world / "schema.toml", "--label", "rich"),
        *("--steps", "10", "--out", tmp_path / "run"),
    )
    left = {line["step"]: line["seconds_left"] for line in lines(done) if line["event"] == "step"}
    assert left == {1: None, **{step: 10.0 - step for step in range(2, 11)}}


def test_resume_of_rows_that_have_moved(world, tmp_path, monkeypatch):
    import signal

    from ratewise.cli.watching import Watcher

    people(500, 0).to_csv(tmp_path / "here.csv", index=False)
    with monkeypatch.context() as patched:
        patched.setattr(Watcher, "_show", lambda *_: signal.raise_signal(signal.SIGINT))
        base = ["train", tmp_path / "here.csv", "--schema", world / "schema.toml", "--label", "rich"]
        assert invoke(*base, "--steps", "5", "--out", tmp_path / "run").exit_code == 130
    (tmp_path / "here.csv").rename(tmp_path / "there.csv")
    done = invoke("resume", tmp_path / "run")
    assert (done.exit_code, "--data FILE" in done.stderr) == (2, True)
    assert invoke("resume", tmp_path / "run", "--data", tmp_path / "there.csv").exit_code == 0


def test_an_evaluation_that_cannot_be_kept_is_shown_all_the_same(world, tmp_path):
    import shutil

    shutil.copytree(world / "run", tmp_path / "run")
    (tmp_path / "run" / ".run.lock").unlink()
    (tmp_path / "run" / ".run.lock").mkdir()  # as good as a folder that cannot be written, for root too
    before = sorted(path.name for path in (tmp_path / "run").iterdir())
    done = invoke("evaluate", tmp_path / "run", world / "test.csv")
    assert done.exit_code == 0
    assert "accuracy" in done.stdout
    assert "is not kept" in done.stderr
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == before


def test_resume_of_what_is_finished_or_missing(world, tmp_path):
    done = invoke("resume", world / "run")
    assert (done.exit_code, "finished" in done.stderr) == (2, True)
    done = invoke("resume", tmp_path / "nowhere")
    assert (done.exit_code, "no run folder" in done.stderr) == (2, True)


def test_the_guide_names_flags_and_constraints_that_exist():
    import re
    import tomllib

    from ratewise.grammar import parse_constraint

    guide = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text(encoding="utf-8")
    flags = {flag for command in cli.commands.values() for p in command.params for flag in p.opts}
    flags |= {flag for p in cli.params for flag in p.opts}
    assert set(re.findall(r"--[a-z][a-z-]*", guide)) <= flags
    blocks = re.findall(r"```(\w+)\n(.*?)```", guide, flags=re.DOTALL)
    texts = next(body for kind, body in blocks if kind == "text").splitlines()
    texts += re.findall(r'--constraint "([^"{]+)"', guide)
    cells = re.findall(r"^\| `([^`]+)` \|", guide, flags=re.MULTILINE)
    texts += [cell.replace("\\|", "|") for cell in cells if "=" in cell]
    assert len(texts) >= 9
    for text in texts:
        parse_constraint(text)
    schema, config = (tomllib.loads(body) for kind, body in blocks if kind == "toml")
    assert Schema.from_dict(schema).label == "income"
    assert config.keys() <= {p.name for p in cli.commands["train"].params}


def test_the_line_of_progress_fits_every_terminal():
    from ratewise.cli.watching import _line

    for step in ("7/200", "113/200", "11300/20000"):
        said = {"step": step, "epsilon": "epsilon 0.763", "gradient": "gradient 0.0164"}
        said |= {"gap": "worst gap +0.011", "left": "12 s left"}
        for width in (19, 39, 69, 79, 89, 98, 119, 159):
            shown = _line(0.5, said, width)
            assert len(shown) <= width
            assert shown.startswith("[##########..........]" if width >= 99 else "[####....]")
            assert width < 69 or "worst gap +0.011, 12 s left" in shown
            assert width < 89 or "gradient 0.0164" in shown
        assert _line(0.5, said) == f"[##########..........] step {', '.join(said.values())}"
