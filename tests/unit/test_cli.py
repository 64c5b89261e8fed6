"""The commands in one process: what they print, write and reject."""

import json
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from ratewise.accounting import Ledger
from ratewise.cli.app import COMMANDS, cli
from ratewise.cli.options import read_schema, to_toml
from ratewise.data.schema import Category, Number, Schema
from ratewise.estimators.evaluation import evaluate
from ratewise.report import Report
from ratewise.runs import RunFolder
from ratewise.training.certificate import CANNOT_TELL, HELD, MISSED

PARITY = "demographic_parity(sex) <= 0.1"
QUICK = ["--steps", "12", "--epsilon", "4", "--seed", "1"]
SCHEMA = Schema(
    {"age": Number(17, 90), "job": Category(["clerk", "sales", "nurse"])},
    label="rich",
    classes=["no", "yes"],
    groups={"sex": Category(["F", "M"])},
)


def people(rows=1500, seed=0):
    rng = np.random.default_rng(seed)
    age = rng.uniform(17, 90, rows).round()
    job = rng.choice(["clerk", "sales", "nurse"], rows)
    rich = age + 20 * (job == "sales") + rng.normal(0, 10, rows) > 60
    return pd.DataFrame(
        {"age": age, "job": job, "sex": rng.choice(["F", "M"], rows), "rich": np.where(rich, "yes", "no")}
    )


def run(*words, code=0, **options):
    done = CliRunner().invoke(cli, [str(word) for word in words], **options)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == code, done.output
    return done


def events(done, kind=None):
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return found if kind is None else [event for event in found if event["event"] == kind]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    place = tmp_path_factory.mktemp("world")
    people().to_csv(place / "people.csv", index=False)
    people(700, seed=1).to_csv(place / "test.csv", index=False)
    (place / "schema.toml").write_text(to_toml(SCHEMA.to_dict()))
    run("train", place / "people.csv", "--label", "rich", "--constraint", PARITY, "--out", place / "run", *QUICK)
    return place


@pytest.fixture
def copy(world, tmp_path):
    """A copy of the finished run, for tests that add files to it."""
    return shutil.copytree(world / "run", tmp_path / "run")


class TestTrain:
    def test_a_raw_file_without_a_schema(self, world, tmp_path):
        words = ["--label", "rich", "--groups", "sex", "--constraint", PARITY, "--out", tmp_path / "run", *QUICK]
        done = run("train", world / "people.csv", *words)
        first = done.stdout.splitlines()[0]
        assert first.startswith("Largest gap: requested .1, reached ")
        assert first.endswith("(tolerance .01)")
        folder = RunFolder.open(tmp_path / "run")
        assert folder.finished
        assert folder.schema is None
        domain = folder.model().constraints_.domain
        assert (domain.classes, domain.columns) == (("no", "yes"), {"sex": ("F", "M")})
        statement = folder.statement()
        assert statement.epsilon <= 4.0
        assert statement.outside == (
            "how the file is written (separator, decimal mark, encoding, header, order of dates, marks of thousands, "
            "lines around the table)",
        )
        assert folder.certificate()[0].verdict in (HELD, MISSED, CANNOT_TELL)

    def test_groups_are_no_features_unless_named(self, world):
        model = RunFolder.open(world / "run").model()
        assert list(model.feature_names_in_) == ["age", "job"]

    def test_a_schema_gives_label_and_declarations(self, world, tmp_path):
        words = ["--schema", world / "schema.toml", "--constraint", PARITY, "--out", tmp_path / "run", *QUICK]
        run("train", world / "people.csv", *words)
        folder = RunFolder.open(tmp_path / "run")
        assert folder.settings.label == "rich"
        assert folder.schema == SCHEMA
        assert folder.statement().found == ()

    def test_an_unsigned_schema_counts_as_read_off_the_data(self, world, tmp_path):
        (tmp_path / "schema.toml").write_text(to_toml(SCHEMA.replace(signed=False).to_dict()))
        words = ["--schema", tmp_path / "schema.toml", "--out", tmp_path / "run", *QUICK]
        done = run("train", world / "people.csv", *words)
        assert "the schema is not signed" in done.stderr
        assert "the classes" in RunFolder.open(tmp_path / "run").statement().outside

    def test_ids_features_and_classes(self, tmp_path):
        frame = people().assign(person=lambda f: np.arange(len(f)) // 2, noise=1.0)
        frame.to_csv(tmp_path / "people.csv", index=False)
        words = ["--label", "rich", "--privacy-id", "person", "--rows-per-id", "2", "--features", "age,sex"]
        more = ["--classes", "no,yes", "--constraint", PARITY, "--out", tmp_path / "run", "--title", "My run"]
        run("train", tmp_path / "people.csv", *words, *more, *QUICK)
        folder = RunFolder.open(tmp_path / "run")
        assert list(folder.model().feature_names_in_) == ["age", "sex"]
        assert folder.statement().unit.max_rows == 2
        assert folder.statement().n_units == 750
        assert folder.settings.title == "My run"

    def test_json_lines(self, world, tmp_path):
        words = ["--label", "rich", "--constraint", PARITY, "--out", tmp_path / "run", *QUICK]
        done = run("train", world / "people.csv", *words, "--json")
        (ended,) = events(done, "done")
        assert ended["certificate"]["summary"].startswith("Largest gap: requested .1")
        assert ended["epsilon"] <= 4.0
        last = events(done, "step")[-1]
        assert last["step"] == last["steps"] == 12
        assert last["epsilon"] == pytest.approx(ended["epsilon"], rel=1e-6)

    def test_quiet_prints_nothing(self, world, tmp_path):
        done = run("train", world / "people.csv", "--label", "rich", "--out", tmp_path / "run", "-q", *QUICK[:4])
        assert done.output == ""

    def test_a_file_gives_every_field_and_flags_win(self, world, tmp_path):
        fields = {
            "data": str(world / "people.csv"),
            "label": "rich",
            "constraint": PARITY,
            "steps": 5,
            "epsilon": 2.0,
            "out": str(tmp_path / "run"),
        }
        (tmp_path / "train.toml").write_text(to_toml(fields))
        run("train", "--config", tmp_path / "train.toml", "--epsilon", "3")
        settings = RunFolder.open(tmp_path / "run").settings
        assert settings.epsilon == 3.0
        assert settings.config.steps == 5
        assert settings.constraints == (PARITY,)

    @pytest.mark.parametrize("content", ['lable = "x"', "epsilon = true", "steps = 1.5", "= 3", "[1, 2]"])
    def test_wrong_files_of_settings(self, tmp_path, content):
        (tmp_path / "train.toml").write_text(content)
        done = run("train", "--config", tmp_path / "train.toml", code=2)
        assert "train.toml" in done.stderr

    def test_a_seed_is_not_kept(self, world, tmp_path, monkeypatch):
        words = ["train", str(world / "people.csv"), "--label", "rich", "--out", str(tmp_path / "run")]
        words += ["--steps", "3", "--epsilon", "4", "--seed", "4711471147"]
        monkeypatch.setattr("sys.argv", ["ratewise", *words])
        run(*words)
        text = "".join(path.read_text(errors="ignore") for path in (tmp_path / "run").iterdir() if path.is_file())
        assert "(not kept)" in text
        assert "4711471147" not in text

    def test_wrong_bounds_are_reported(self, world, tmp_path):
        wrong = SCHEMA.replace(columns={**SCHEMA.columns, "age": Number(500, 900)})
        (tmp_path / "schema.toml").write_text(to_toml(wrong.to_dict()))
        words = ["--schema", tmp_path / "schema.toml", "--out", tmp_path / "run", *QUICK]
        done = run("train", world / "people.csv", *words)
        assert "of column 'age' lie at one end of the declared bounds 500 to 900" in done.stderr

    def test_every_undecided_constraint_has_a_remedy(self, world, tmp_path):
        words = ["--schema", world / "schema.toml", "--out", tmp_path / "run", "--steps", "5", "--epsilon", "0.05"]
        texts = [PARITY, "demographic_parity(sex) <= 0.01", "error_rate_parity(sex) <= 0.01"]
        for text in texts:
            words += ["--constraint", text]
        done = run("train", world / "people.csv", *words)
        rows = RunFolder.open(tmp_path / "run").certificate()
        undecided = [row for row in rows if row.verdict == CANNOT_TELL]
        assert len(undecided) >= 2
        expected = re.search(r"certified to about \+- ([0-9.]+)", done.output)  # before the first step
        assert float(expected[1]) > 0.3
        for row in undecided:
            assert row.remedy
            assert row.remedy in done.stdout


class TestBadInput:
    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (["--label", "no such"], "the table has no column 'no such'"),
            (["--label", "ritch"], "did you mean 'rich'?"),
            ([], "--label is missing"),
            (["--label", "rich", "--groups", "rich"], "is the label"),
            (["--label", "rich", "--privacy-id", "nobody"], "no column 'nobody'"),
            (["--label", "rich", "--privacy-id", "sex", "--groups", "sex"], "is the privacy id"),
            (["--label", "rich", "--features", "age", "--leave-out", "job"], "exclude each other"),
            (["--label", "rich", "--features", "agge"], "no column 'agge'"),
            (["--label", "rich", "--epsilon", "-1"], "epsilon"),
            (["--label", "rich", "--epsilon", "nan"], "epsilon"),
            (["--label", "rich", "--delta", "0.1"], "delta is 0.1, above 1/n"),
            (["--label", "rich", "--tolerance", "-1"], "tolerance"),
            (["--label", "rich", "--steps", "0"], "steps"),
            (["--label", "rich", "--constraint", "rate(1) < 0.2"], "character 11"),
            (["--label", "rich", "--constraint", "demographic_parity(sexx) <= 0.1"], "sexx"),
            (["--label", "rich", "--constraint", "demographic_parity(rich) <= 0.1"], "is the label, not a group"),
            (["--label", "rich", "--constraint", "equal_opportunity(sex) <= 0.1"], "--classes no,yes"),
            (["--label", "rich", "--classes", "no,yes", "--constraint", "rate('maybe') <= 0.1"], "not among the"),
            (["--label", "rich", "--sep", "toolong"], "sep must be"),
            (["--label", "rich", "--encoding", "klingon"], "encoding"),
            (["--label", "rich", "--sheet", "1"], "no Excel workbook"),
            (["--label", "rich", "--ledger", "new.json"], "--ledger-cap"),
            (["--label", "rich", "--privacy-id", "rich"], "cannot be in --privacy-id"),
            (["--label", "rich", "--delta", "0.5"], "--delta is 0.5, above 1/n"),
            (["--label", "rich", "--model", "forest"], "forest"),
        ],
    )
    def test_one_message_exit_code_2_and_no_files(self, world, tmp_path, monkeypatch, words, said):
        monkeypatch.chdir(tmp_path)
        done = run("train", world / "people.csv", "--out", tmp_path / "run", *words, code=2)
        assert said in done.stderr
        assert "Traceback" not in done.output
        assert list(tmp_path.iterdir()) == []

    def test_a_schema_is_checked_before_the_table_is_read(self, world, tmp_path):
        words = ["--schema", world / "schema.toml", "--out", tmp_path / "run"]
        for text, word in (("tpr(label='yes', sex=Femal) >= 0.8", "'Femal'"), ("rate('perhaps') <= 0.2", "perhaps")):
            done = run("train", tmp_path / "no such.csv", *words, "--constraint", text, code=2)
            assert word in done.stderr
            assert "^" in done.stderr

    def test_files_that_cannot_be_read(self, world, tmp_path):
        (tmp_path / "empty.csv").write_text("")
        (tmp_path / "secret.pkl").write_bytes(b"\x80secret")
        (tmp_path / "a.parquet").write_text("secret,b\n1,2\n")
        for name in ("empty.csv", "secret.pkl", "a.parquet", "none.csv"):
            done = run("train", tmp_path / name, "--label", "y", "--out", tmp_path / "run", code=2)
            assert name in done.stderr
            assert not (tmp_path / "run").exists()

    def test_places_that_cannot_be_written(self, world, tmp_path):
        (tmp_path / "file").write_text("x")
        for out in (tmp_path / "file", tmp_path / "file" / "run"):
            run("train", world / "people.csv", "--label", "rich", "--out", out, code=2)
        run("train", world / "people.csv", "--label", "rich", "--out", world / "run", code=2)
        assert (tmp_path / "file").read_text() == "x"

    def test_a_spent_ledger_has_its_own_exit_code(self, world, tmp_path):
        common = ["train", world / "people.csv", "--label", "rich", "--ledger", tmp_path / "all.json"]
        run(*common, "--ledger-cap", "5", "--out", tmp_path / "one", "--steps", "3", "--epsilon", "4")
        done = run(*common, "--out", tmp_path / "two", "--steps", "3", "--epsilon", "4", code=3)
        assert "would pass the cap" in done.stderr
        assert not (tmp_path / "two").exists()
        assert len(Ledger.open(tmp_path / "all.json").admissions) == 1


class TestUsingRuns:
    def test_evaluate_agrees_with_a_count_by_hand(self, world, copy):
        done = run("evaluate", copy, world / "test.csv", "--json")
        (found,) = events(done, "result")
        frame = people(700, seed=1)
        predicted = RunFolder.open(copy).model().predict(frame)
        rates = [np.mean(predicted[frame["sex"] == sex] == "yes") for sex in ("F", "M")]
        assert found["constraints"][0]["estimate"] == pytest.approx(abs(rates[0] - rates[1]))
        assert found["accuracy"]["value"] == pytest.approx(np.mean(predicted == frame["rich"]))
        assert found["summary"].startswith("Largest gap: requested .1, reached ")
        assert len(RunFolder.open(copy).evaluations) == 1

    def test_the_first_line_is_the_summary(self, world, copy):
        done = run("evaluate", copy, world / "test.csv")
        assert done.stdout.splitlines()[0].startswith("Largest gap: requested .1, reached ")

    def test_values_that_the_model_does_not_know_count_as_other(self, world, copy, tmp_path):
        frame = people(700, seed=1).astype(object)
        frame.loc[:4, "job"] = "astronaut"
        frame.loc[5:9, "sex"] = "X"
        frame.loc[10:14, "rich"] = "maybe"
        frame.loc[15:19, "age"] = "n/a"
        frame.loc[20:24, ["job", "sex", "rich", "age"]] = None
        frame.to_csv(tmp_path / "odd.csv", index=False)
        run("evaluate", copy, tmp_path / "odd.csv")
        run("report", copy, tmp_path / "odd.csv", "--out", tmp_path / "page.html")
        done = run("predict", copy, tmp_path / "odd.csv", "--out", tmp_path / "found.csv")
        assert "700 predictions" in done.output
        assert set(pd.read_csv(tmp_path / "found.csv")["prediction"]) == {"no", "yes"}

    def test_predict_needs_neither_label_nor_groups_nor_order(self, world, tmp_path):
        frame = people(40, seed=2)
        frame[["job", "age"]].assign(more=1).to_csv(tmp_path / "new.csv", index=False)
        done = run("predict", world / "run", tmp_path / "new.csv", "--proba")
        found = pd.read_csv(pd.io.common.StringIO(done.stdout))
        model = RunFolder.open(world / "run").model()
        assert found["prediction"].tolist() == model.predict(frame[["age", "job"]]).tolist()
        np.testing.assert_allclose(found["probability of yes"], model.predict_proba(frame)[:, 1])
        done = run("predict", world / "run", world / "schema.toml", code=2)

    def test_private_evaluation_is_recorded(self, world, copy):
        done = run("evaluate", copy, world / "test.csv", "--epsilon", "3", "--json")
        (found,) = events(done, "result")
        assert found["noise_std"] > 0
        ledger = Ledger.open(copy / "evaluations.json")
        assert ledger.total(1e-5) <= 3.0
        run("evaluate", copy, world / "test.csv", "--epsilon", "3", code=3)

    def test_private_evaluation_protects_the_unit_of_the_run(self, world, tmp_path):
        frame = people(1500).assign(person=lambda found: np.arange(len(found)) // 3)
        frame.to_csv(tmp_path / "visits.csv", index=False)
        words = ("--label", "rich", "--constraint", PARITY, "--privacy-id", "person", "--out", tmp_path / "run")
        run("train", tmp_path / "visits.csv", *words, *QUICK)
        done = run("evaluate", tmp_path / "run", tmp_path / "visits.csv", "--epsilon", "3", "--json")
        (found,) = events(done, "result")
        assert (found["unit"], found["n_units"]) == ("ids", 500)
        (plan,) = Ledger.open(tmp_path / "run" / "evaluations.json").admissions
        assert (plan.unit.kind, plan.unit.column, plan.names[0]) == ("id", "person", "rows per id")
        assert "At most 4 rows of an id are used: by released counts" in done.output
        done = run("evaluate", tmp_path / "run", world / "test.csv", "--epsilon", "3", code=2)
        assert "lacks the column 'person'" in done.stderr

    def test_decisions_for_a_schema_are_listed_in_terms_of_the_command_line(self, tmp_path):
        rows = "".join(f"1,,{i / 61}\n" for i in range(61))
        (tmp_path / "rows.csv").write_text("x,g,y\n" + rows)
        out = tmp_path / "schema.toml"
        done = run("schema", tmp_path / "rows.csv", "--label", "y", "--groups", "g", "--out", out, code=2)
        for option in ("--label.", "--groups.", "--features."):
            assert f"To change it: {option}" in done.stderr
        assert not out.exists()

    def test_a_report_uses_the_names_of_the_schema(self, tmp_path):
        people().to_csv(tmp_path / "people.csv", index=False)
        named = SCHEMA.replace(
            columns={**SCHEMA.columns, "age": Number(17, 90, title="age in years")},
            groups={"sex": Category(["F", "M"], labels={"F": "female"}, title="gender")},
            class_labels={"yes": "well off"},
        )
        (tmp_path / "schema.toml").write_text(to_toml(named.to_dict()))
        constraint = "demographic_parity(sex) <= 0.2"
        run(
            *("train", tmp_path / "people.csv", "--schema", tmp_path / "schema.toml", "--steps", 3),
            *("--constraint", constraint, "--out", tmp_path / "run"),
        )
        run("report", tmp_path / "run", tmp_path / "people.csv", "--out", tmp_path / "page.html")
        page = (tmp_path / "page.html").read_text()
        for said in ("gender = F: female", "yes: well off", "age in years"):
            assert said in page

    def test_evaluations_name_what_they_lack(self, world, copy, tmp_path):
        pd.read_csv(world / "test.csv").drop(columns="rich").to_csv(tmp_path / "new.csv", index=False)
        assert "lacks the column 'rich'; label and groups" in run("evaluate", copy, tmp_path / "new.csv", code=2).stderr
        words = ("--ledger", tmp_path / "l.json")
        assert "needs --epsilon" in run("evaluate", copy, world / "test.csv", *words, code=2).stderr

    def test_report_and_card(self, world, copy, tmp_path):
        run("report", copy)
        assert "was released by the training" in (copy / "report.html").read_text()
        run("report", copy, world / "test.csv", "--card", tmp_path / "card.md")
        assert "was measured on the rows it was given" in (copy / "report.html").read_text()
        page = (copy / "report.html").read_text()
        assert re.search(r"<h1>Prediction of \w+, compared by sex, from people.csv</h1>", page)
        assert "rows of test.csv; the model was trained on" in page
        assert "and everybody else are predicted" in page
        assert "sex=<wbr>F" in page
        run("report", copy, "--title", "Who is rich")
        assert "Who is rich" in (copy / "report.html").read_text()
        run("report", copy, "--out", tmp_path / "card.md", code=2)  # it exists, and is not the run's own
        run("report", copy, "--baseline", copy, "--force", code=2)

    def test_compare_shows_references_and_verdicts(self, world, copy):
        done = run("compare", copy, "--data", world / "test.csv", "--json")
        (found,) = events(done, "result")
        first, unconstrained, common = found["runs"]
        assert first["verdict"] in (HELD, MISSED, CANNOT_TELL)
        assert unconstrained["accuracy"] > common["accuracy"]
        assert common["largest_gap"] == 0.0
        text = run("compare", copy, "--data", world / "test.csv").stdout
        assert text.splitlines()[0].startswith(f"{copy}: Largest gap: requested .1")
        assert "most common class" in text
        training = events(run("compare", copy, "--json"), "result")[0]["runs"]
        assert training[0]["rows"] == "training rows"

    @pytest.mark.parametrize(
        ("predicted_yes", "verdict"),
        [
            ({"F": 50, "M": 61, "X": 60}, HELD),  # the population interval extends beyond the tolerance
            ({"F": 50, "M": 54, "X": 90}, MISSED),  # held without the rows of an unknown group
            ({"F": 50}, CANNOT_TELL),
        ],
    )
    def test_a_run_has_the_same_verdict_everywhere(self, world, tmp_path, predicted_yes, verdict):
        words = ("sweep", world / "people.csv", "--label", "rich", "--constraint", PARITY, *QUICK)
        out, table = tmp_path / "sweep", tmp_path / "test.csv"
        frame = people(1500, seed=3)
        run(*words, "--out", tmp_path / "draft")  # the same model: the rows are chosen by its predictions
        place, model = out / "run-01", RunFolder.open(tmp_path / "draft" / "run-01").model()
        predicted = model.predict(frame) == "yes"
        parts = []
        for sex, count in predicted_yes.items():
            both = [frame[predicted].head(count), frame[~predicted].head(100 - count)]
            parts.append(pd.concat(both).assign(sex=sex))
        rows = pd.concat(parts, ignore_index=True)
        rows.to_csv(table, index=False)
        swept = events(run(*words, "--out", out, "--json"), "result")[0]["runs"][0]
        assert swept["summary"] == RunFolder.open(place).certificate().summary
        evaluated = events(run("evaluate", place, table, "--json"), "result")[0]
        kept = RunFolder.open(place).last_evaluation()
        compared = events(run("compare", place, "--data", table, "--json"), "result")[0]["runs"][0]
        again = events(run("compare", place, "--json"), "result")[0]["runs"][0]
        model = RunFolder.open(place).model()
        sexes = {"sex": rows["sex"]}
        found = evaluate(
            PARITY, rows["rich"], model, X=rows, sensitive_features=sexes,
            classes=["no", "yes"], group_values={"sex": ["F", "M"]},
        )  # fmt: skip
        report = model.report(rows, rows["rich"], sensitive_features=sexes)
        run("report", place, table, "--out", tmp_path / "page.html", "--card", tmp_path / "card.md")
        last = Report.from_json(json.dumps(RunFolder.open(place).last_evaluation()["report"]))
        said = {
            *(each["verdict"] for each in (evaluated, kept["certificate"], compared, again)),
            *(found.verdict, found[0].verdict, evaluated["constraints"][0]["verdict"]),
            *(one.content.state for one in (report, last, Report.from_json(json.dumps(kept["report"])))),
        }
        assert said == {verdict}
        lines = {
            *(each["summary"] for each in (evaluated, kept["certificate"], compared, again)),
            *(found.summary, report.headline, last.headline),
            *(run("evaluate", place, table).stdout.splitlines()[0],),
            *(run("compare", place, "--data", table).stdout.splitlines()[0].removeprefix(f"{place}: "),),
        }
        assert len(lines) == 1
        for page in ("page.html", "card.md"):
            assert f"{verdict} (tolerance .01)" in (tmp_path / page).read_text().replace("\\", "")

    def test_tampered_and_missing_runs(self, world, copy, tmp_path):
        run("predict", tmp_path / "none", world / "test.csv", code=2)
        content = bytearray((copy / "model.ratewise").read_bytes())
        content[-30] ^= 1
        (copy / "model.ratewise").write_bytes(bytes(content))
        done = run("predict", copy, world / "test.csv", code=2)
        assert "model.ratewise" in done.stderr
        run("resume", world / "run", code=2)


class TestPlanning:
    def test_schema_drafts_a_file_that_trains(self, world, tmp_path):
        words = ["--label", "rich", "--groups", "sex", "--out", tmp_path / "schema.toml"]
        done = run("schema", world / "people.csv", *words)
        assert "READ OFF THE DATA" in done.stderr
        text = (tmp_path / "schema.toml").read_text()
        assert not read_schema(str(tmp_path / "schema.toml")).signed
        (tmp_path / "schema.toml").write_text(text.replace("signed = false", "signed = yes"))
        words = ["--schema", tmp_path / "schema.toml", "--constraint", PARITY, "--out", tmp_path / "run", *QUICK]
        run("train", world / "people.csv", *words)
        outside = RunFolder.open(tmp_path / "run").statement().outside
        assert not [line for line in outside if "classes" in line]

    def test_plan_agrees_with_the_training(self, world, tmp_path):
        words = ["--schema", world / "schema.toml", "--constraint", PARITY, "--epsilon", "4", "--steps", "12"]
        done = run("plan", "--rows", "1500", *words, "--no-rehearse", "--json")
        (found,) = events(done, "result")
        run("train", world / "people.csv", *words, "--out", tmp_path / "run")
        folder = RunFolder.open(tmp_path / "run")
        admission = folder.admission(folder.ledger())
        assert found["releases"] == dict(zip(admission.names, map(str, admission.events), strict=True))
        assert found["steps"] == 12
        assert 0 < found["certificate_half_width"] < 0.2

    def test_plan_rehearses_on_made_up_rows(self):
        words = ["--rows", "1000", "--features", "3", "--group", "sex=F,M", "--constraint", PARITY, "--steps", "20"]
        done = run("plan", *words)
        assert "on 1,000 made-up rows" in done.stdout
        assert "certificate:" in done.stdout
        for words in (["--rows", "0", "--features", "3"], ["--rows", "10"], ["--features", "3"]):
            run("plan", *words, code=2)

    def test_sweep_states_its_total_in_one_ledger(self, world, tmp_path):
        common = ["sweep", world / "people.csv", "--label", "rich", "--steps", "5", "--epsilons", "2,4"]
        texts = ["--constraint", "demographic_parity(sex) <= {slack}", "--slack", "0.1"]
        done = run(*common, *texts, "--out", tmp_path / "sweep", "--json")
        (found,) = events(done, "result")
        assert [row["run"] for row in found["runs"]] == ["run-01", "run-02"]
        ledger = Ledger.open(tmp_path / "sweep" / "ledger.json")
        assert len(ledger.admissions) == 2
        assert found["total_epsilon"] == pytest.approx(ledger.total(1e-5), rel=1e-6)
        assert 4.0 < found["total_epsilon"] < 6.0
        run(*common, "--slack", "0.1", "--out", tmp_path / "no", code=2)

    def test_help_names_every_command(self):
        text = run("--help").output
        for name in ("train", "resume", "predict", "evaluate", "report", "plan", "audit", "compare", "sweep"):
            assert name in text
        for name in ("schema", "start", "app"):
            assert name in text
        run("no-such", code=2)


class TestGuidedStart:
    def test_suggestions_are_accepted(self, world, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        people(400).to_csv("people.csv", index=False)
        done = run("start", "people.csv", "--yes", "--epsilon", "4", "--label", "rich")
        assert "Largest gap: requested .05" in done.stdout
        place = tmp_path / "people-run"
        assert {"report.html", "command.txt", "train.toml", "train.py"} <= {path.name for path in place.iterdir()}
        assert sorted(path.name for path in tmp_path.iterdir()) == ["people-run", "people.csv"]
        # the three forms describe the same run
        settings = RunFolder.open(place).settings
        words = shlex.split((place / "command.txt").read_text())[1:]
        run(*words[:-1], "by-command", "--steps", "2")
        (tmp_path / "same.toml").write_text((place / "train.toml").read_text())
        run("train", "--config", "same.toml", "--out", "by-file", "--steps", "2")
        for name in ("by-command", "by-file"):
            found = RunFolder.open(tmp_path / name).settings
            assert replace(found, training={}) == settings
        script = (place / "train.py").read_text()
        compile(script, "train.py", "exec")
        assert "sensitive_features=table[['sex']]" in script

    def test_questions_in_the_terminal(self, world, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("ratewise.cli.guided._MOST_MADE_UP", 200)
        people(400).to_csv("people.csv", index=False)
        answers = ["nobody", "rich", "age", "rows", "sex", "2", "yes", "0.2", "2", "mine"]
        done = run("start", "people.csv", input="\n".join(answers) + "\n")
        assert "'nobody' is no column" in done.output
        assert "accuracy" in done.output
        settings = RunFolder.open(tmp_path / "mine").settings
        assert settings.epsilon == 2.0
        assert settings.leave_out == ("age",)
        assert settings.constraints == ("equal_opportunity(sex, positive='yes') <= 0.2",)

    def test_what_cannot_be(self, world, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        pd.DataFrame({"a": [1, 2]}).to_csv("one.csv", index=False)
        run("start", "one.csv", "--yes", code=2)
        run("start", world / "people.csv", "--yes", "--label", "x", code=2)
        run("start", world / "people.csv", "--yes", "--kind", "opportunity", "--groups", "sex", code=2)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["one.csv"]


DIFFICULT = {
    "semicolons and decimal commas": ({"sep": ";", "decimal": ","}, "csv", {}),
    "tabs": ({"sep": "\t"}, "tsv", {}),
    "cp1252": ({"encoding": "cp1252"}, "csv", {}),
    "bom": ({"encoding": "utf-8-sig"}, "csv", {}),
    "gzip": ({"compression": "gzip"}, "csv.gz", {}),
    "no header": ({"header": False}, "csv", {"label": "column_5", "sex": "column_4"}),
}


@pytest.mark.parametrize("how", DIFFICULT)
def test_first_use_with_difficult_files(tmp_path, how):
    """Train, evaluate, report and predict work on raw files without edits."""
    options, ending, names = DIFFICULT[how]
    label, sex = names.get("label", "income"), names.get("sex", "sex")
    for name, rows, seed in (("train", 900, 0), ("test", 300, 1)):
        frame = people(rows, seed).rename(columns={"rich": "income"})
        frame["income"] = frame["income"].map({"yes": ">50K", "no": "<=50K"})
        frame.insert(1, "weight", np.round(frame["age"] * 1.5 + 0.25, 2))
        frame["job"] = frame["job"].replace({"nurse": "Krankenpfleger für Ältere"})
        frame.loc[:5, "weight"] = np.nan
        frame.to_csv(tmp_path / f"{name}.{ending}", index=False, **options)
    out = tmp_path / "run"
    text = f"demographic_parity({sex}) <= 0.1"
    run("train", tmp_path / f"train.{ending}", "--label", label, "--constraint", text, "--out", out, *QUICK)
    test = tmp_path / f"test.{ending}"
    done = run("evaluate", out, test, "--json")
    assert events(done, "result")[0]["accuracy"]["value"] > 0.6
    run("report", out, test)
    run("predict", out, test, "--out", tmp_path / "found.csv")
    assert set(pd.read_csv(tmp_path / "found.csv")["prediction"]) == {"<=50K", ">50K"}


def test_the_guide_names_flags_that_exist():
    text = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text()
    known = {
        flag
        for command in (cli.get_command(None, name) for name in COMMANDS)
        for param in command.params
        for flag in (*param.opts, *param.secondary_opts)
    }
    known |= {"--json", "--quiet", "--help"}
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text))
    assert named - known == set()
    assert all(f"`{name}" in text for name in COMMANDS)


def test_every_command_of_the_list_exists_under_its_name():
    for name in COMMANDS:
        command = cli.get_command(None, name)
        assert command is not None
        assert command.name == name
    assert cli.get_command(None, "trian") is None


class TestLabelsThatAreSpeltDifferently:
    def test_a_full_stop_after_the_label_is_left_out(self, copy, tmp_path):
        people(300, seed=2).to_csv(tmp_path / "plain.csv", index=False)
        dotted = people(300, seed=2).assign(rich=lambda frame: frame["rich"] + ".")
        dotted.to_csv(tmp_path / "dotted.csv", index=False)
        plain, other = (
            events(run("--json", "evaluate", copy, tmp_path / name), "result")[0]
            for name in ("plain.csv", "dotted.csv")
        )
        assert {**other, "data": ""} == {**plain, "data": ""}
        run("report", copy, tmp_path / "dotted.csv", "--out", tmp_path / "page.html")

    @pytest.mark.parametrize("command", ["evaluate", "report"])
    def test_a_table_without_any_known_label_is_refused_with_the_classes(self, copy, tmp_path, command):
        people(300, seed=2).assign(rich="maybe").to_csv(tmp_path / "other.csv", index=False)
        before = sorted(copy.iterdir())
        done = run(command, copy, tmp_path / "other.csv", code=2)
        assert "'maybe'" in done.stderr
        assert "'no', 'yes'" in done.stderr
        assert sorted(copy.iterdir()) == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--steps", "0"), "--steps must be at least 1"),
        (("--delta", "2"), "--delta must be strictly between 0 and 1"),
        (("--sampling-rate", "3"), "--sampling-rate must be above 0"),
        (("--checkpoint-every", "0"), "--checkpoint-every must be at least 1"),
    ],
)
def test_errors_about_arguments_name_the_flag(world, tmp_path, words, said):
    done = run("train", world / "people.csv", "--label", "rich", "--out", tmp_path / "run", *words, code=2)
    assert f"error: {said}" in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_private_evaluation_with_a_new_ledger_needs_its_cap(copy, world, tmp_path):
    words = ("--epsilon", "1", "--ledger", tmp_path / "ledger.json")
    assert "--ledger-cap" in run("evaluate", copy, world / "test.csv", *words, code=2).stderr
    assert not (tmp_path / "ledger.json").exists()
    done = run("evaluate", copy, world / "test.csv", "--confidence", "2", code=2)
    assert "--confidence must be" in done.stderr
